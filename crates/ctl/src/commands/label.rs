//! `label`: sets or removes one label of one object.

use super::parse_kind;
use crate::cli::{GlobalArgs, LabelArgs};
use crate::failure::{CommandError, CommandResult};
use crate::namespace::{RequestedNamespace, resolve};
use crate::session;
use crate::verbs::{ModifyError, modify};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::Write;

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

pub async fn label(args: &LabelArgs, global: &GlobalArgs, out: &mut dyn Write) -> CommandResult<()> {
    let change = parse(&args.label, args.remove, args.overwrite)
        .ok_or_else(|| CommandError::message(format!("invalid label {}", args.label)))?;
    let kind = parse_kind(&args.kind).map_err(CommandError::Message)?;
    if args.name.is_empty() {
        return Err(CommandError::message("resource name may not be empty"));
    }
    let asked = RequestedNamespace { namespace: args.namespace.namespace.as_deref(), all: false };
    let namespace = resolve(kind, "", asked).map_err(|error| CommandError::message(error.to_string()))?;
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
        Err(ModifyError::Change(refusal)) => Err(CommandError::Message(refusal)),
        Err(error) if error.is_missing() => Err(CommandError::message(format!("{what} not found"))),
        Err(error) => {
            Err(CommandError::message(format!("failed to update {what}, label not changed: {error}")))
        }
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
    what: &str,
) -> std::result::Result<LabelResult, String> {
    match change {
        LabelChange::Remove { key } => match labels.remove(key) {
            Some(_) => Ok(LabelResult::Removed),
            None => Err(format!("cannot remove label of {what}, key {key} does not exist")),
        },
        LabelChange::Set { key, value, overwrite } => match labels.get(key) {
            Some(old) if !overwrite && old != value => Err(format!(
                "failed to update label of {what}, key {key} is already present. please use '--overwrite' to set a \
                 new value"
            )),
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
        let mut labels = BTreeMap::new();
        assert_eq!(change_labels(&mut labels, set("1", false), "node n"), Ok(LabelResult::Set));
        assert_eq!(change_labels(&mut labels, set("1", false), "node n"), Ok(LabelResult::Updated));
        assert_eq!(
            change_labels(&mut labels, set("2", false), "node n").unwrap_err(),
            "failed to update label of node n, key k is already present. please use '--overwrite' to set a new value"
        );
        assert_eq!(change_labels(&mut labels, set("2", true), "node n"), Ok(LabelResult::Updated));
        assert_eq!(
            change_labels(&mut labels, LabelChange::Remove { key: "k" }, "node n"),
            Ok(LabelResult::Removed)
        );
        assert_eq!(
            change_labels(&mut labels, LabelChange::Remove { key: "k" }, "node n").unwrap_err(),
            "cannot remove label of node n, key k does not exist"
        );
    }
}
