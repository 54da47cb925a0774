//! `label`: sets or removes one label of one object.

use super::parse_kind;
use crate::cli::{GlobalArgs, LabelArgs};
use crate::failure::{CommandError, CommandResult};
use crate::namespace::resolve;
use crate::session;
use crate::verbs::{VerbError, modify};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::Write;
use tortie_store::StoreError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LabelChange<'a> {
    Set { key: &'a str, value: &'a str, overwrite: bool },
    Remove { key: &'a str },
}

/// The change that was made to the label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LabelResult {
    Set,
    Updated,
    Removed,
}

#[derive(Debug, thiserror::Error)]
enum LabelError {
    #[error("cannot remove label of {object}, key {key} does not exist")]
    Missing { object: String, key: String },
    #[error(
        "failed to update label of {object}, key {key} is already present. please use '--overwrite' to set a new value"
    )]
    AlreadySet { object: String, key: String },
    #[error(transparent)]
    Verb(#[from] VerbError),
}

pub async fn label(args: &LabelArgs, global: &GlobalArgs, out: &mut dyn Write) -> CommandResult<()> {
    let change = parse(&args.label, args.remove, args.overwrite)
        .ok_or_else(|| CommandError::message(format!("invalid label {}", args.label)))?;
    let kind = parse_kind(&args.kind)?;
    if args.name.is_empty() {
        return Err(CommandError::EmptyName);
    }
    let namespace = resolve(kind, "", (&args.namespace).into())?;
    // Messages name the kind as the user typed it.
    let what = format!("{} {}", args.kind, args.name);
    let store = session::connect(&args.connection, global).await?;
    let done = Cell::new(LabelResult::Set);
    let result = modify(&store, (kind, &namespace, &args.name), |mut resource| {
        done.set(change_labels(&mut resource.metadata_mut().labels, change, &what)?);
        Ok(resource)
    })
    .await;
    match result {
        Ok(_) => {
            let (LabelChange::Set { key, .. } | LabelChange::Remove { key }) = change;
            match done.get() {
                LabelResult::Set => writeln!(out, "Successfully set label {key} on {what}")?,
                LabelResult::Updated => writeln!(out, "Successfully updated label {key} on {what}")?,
                LabelResult::Removed => writeln!(out, "Successfully removed label {key} from {what}")?,
            }
            Ok(())
        }
        Err(LabelError::Verb(VerbError::Store(StoreError::DoesNotExist { .. }))) => {
            Err(CommandError::message(format!("{what} not found")))
        }
        Err(LabelError::Verb(error)) => {
            Err(CommandError::context(format!("failed to update {what}, label not changed"), error))
        }
        Err(error) => Err(CommandError::message(error)),
    }
}

fn parse(text: &str, remove: bool, overwrite: bool) -> Option<LabelChange<'_>> {
    match (text.split_once('='), remove) {
        (None, true) if !text.is_empty() => Some(LabelChange::Remove { key: text }),
        (Some((key, value)), false) if !key.is_empty() && !value.contains('=') => {
            Some(LabelChange::Set { key, value, overwrite })
        }
        _ => None,
    }
}

fn change_labels(
    labels: &mut BTreeMap<String, String>,
    change: LabelChange<'_>,
    object: &str,
) -> Result<LabelResult, LabelError> {
    match change {
        LabelChange::Remove { key } => match labels.remove(key) {
            Some(_) => Ok(LabelResult::Removed),
            None => Err(LabelError::Missing { object: object.to_owned(), key: key.to_owned() }),
        },
        LabelChange::Set { key, value, overwrite } => match labels.get(key) {
            Some(old) if !overwrite && old != value => {
                Err(LabelError::AlreadySet { object: object.to_owned(), key: key.to_owned() })
            }
            old => {
                let done = if old.is_some() { LabelResult::Updated } else { LabelResult::Set };
                labels.insert(key.to_owned(), value.to_owned());
                Ok(done)
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_parse() {
        assert_eq!(
            parse("a=b", false, true),
            Some(LabelChange::Set { key: "a", value: "b", overwrite: true })
        );
        assert_eq!(
            parse("a=", false, false),
            Some(LabelChange::Set { key: "a", value: "", overwrite: false })
        );
        assert_eq!(parse("a", true, false), Some(LabelChange::Remove { key: "a" }));
        for (text, remove) in [("a", false), ("a=b", true), ("a=b=c", false), ("=b", false), ("", true)] {
            assert_eq!(parse(text, remove, false), None, "{text} {remove}");
        }
    }

    #[test]
    fn labels_change() {
        let set = |value, overwrite| LabelChange::Set { key: "k", value, overwrite };
        let remove = LabelChange::Remove { key: "k" };
        let mut labels = BTreeMap::new();
        let mut change =
            |change| change_labels(&mut labels, change, "node n").map_err(|error| error.to_string());
        assert_eq!(change(set("1", false)), Ok(LabelResult::Set));
        assert_eq!(change(set("1", false)), Ok(LabelResult::Updated));
        assert_eq!(
            change(set("2", false)).unwrap_err(),
            "failed to update label of node n, key k is already present. please use '--overwrite' to set a new value"
        );
        assert_eq!(change(set("2", true)), Ok(LabelResult::Updated));
        assert_eq!(change(remove), Ok(LabelResult::Removed));
        assert_eq!(change(remove).unwrap_err(), "cannot remove label of node n, key k does not exist");
    }
}
