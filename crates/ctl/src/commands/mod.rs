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
use crate::kind_word::{parse_kind_word, similar_kind, similar_word};
use tortie_model::{Kind, Resource};

/// An unknown kind, with calicoctl's message.
#[derive(Debug, thiserror::Error)]
#[error(
    "resource type '{word}' is not supported{}",
    .similar.as_ref().map(|kind| format!("; did you mean {kind}?")).unwrap_or_default()
)]
pub struct UnknownKind {
    word: String,
    similar: Option<String>,
}

/// Returns the error for a word that is no kind, for commands that know all kinds.
pub fn unknown_kind(word: &str) -> CommandError {
    UnknownKind { word: word.to_owned(), similar: similar_word(word, Kind::ALL) }.into()
}

/// Parses the name of a kind.
pub fn parse_kind(word: &str) -> Result<Kind, UnknownKind> {
    parse_kind_word(word).ok_or_else(|| UnknownKind { word: word.to_owned(), similar: similar_kind(word) })
}

/// Returns the objects that the arguments select; they may have no more than a kind and a name. A kind
/// without names yields one object without a name.
pub fn select_objects(selection: &SelectionArgs) -> CommandResult<Vec<Resource>> {
    if let Some(file) = &selection.filename {
        let reading = &selection.reading;
        return Ok(input::resources(file, reading.recursive, reading.skip_empty)?);
    }
    let Some(word) = &selection.kind else { return Err(InputError::Nothing.into()) };
    let kind = parse_kind(word)?;
    if selection.names.is_empty() {
        return Ok(vec![Resource::new(kind)]);
    }
    let mut resources = Vec::new();
    for name in &selection.names {
        if name.is_empty() {
            return Err(CommandError::EmptyName);
        }
        let mut resource = Resource::new(kind);
        resource.metadata_mut().name = name.clone();
        resources.push(resource);
    }
    Ok(resources)
}
