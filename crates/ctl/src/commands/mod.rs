//! The commands, one module each.

pub mod completion;
pub mod delete;
pub mod get;
pub mod label;
pub mod patch;
pub mod version;
pub mod watch;
pub mod write;

use crate::cli::SelectionArgs;
use crate::failure::{CommandError, CommandResult};
use crate::input::{self, InputError};
use crate::kind_word::{alike, kind_of};
use tortie_model::{Kind, Resource};

/// Parses the name of a kind; the error is calicoctl's message for unknown kinds.
pub fn parse_kind(word: &str) -> std::result::Result<Kind, String> {
    kind_of(word).ok_or_else(|| {
        let advice = alike(word).map(|kind| format!("; did you mean {kind}?")).unwrap_or_default();
        format!("resource type '{word}' is not supported{advice}")
    })
}

/// Returns the objects that the arguments select; they may have no more than a kind and a name. A kind
/// without names yields one object without a name.
pub fn selected(selection: &SelectionArgs) -> CommandResult<Vec<Resource>> {
    if let Some(file) = &selection.filename {
        let reading = &selection.reading;
        return Ok(input::resources(file, reading.recursive, reading.skip_empty)?);
    }
    let Some(word) = &selection.kind else { return Err(InputError::Nothing.into()) };
    let kind = parse_kind(word).map_err(CommandError::Message)?;
    let named = |name: &str| {
        let mut resource = Resource::new(kind);
        resource.metadata_mut().name = name.to_owned();
        resource
    };
    if selection.names.is_empty() {
        return Ok(vec![named("")]);
    }
    if selection.names.iter().any(String::is_empty) {
        return Err(CommandError::message("resource name may not be empty"));
    }
    Ok(selection.names.iter().map(|name| named(name)).collect())
}
