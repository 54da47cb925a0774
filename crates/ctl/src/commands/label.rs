//! `label`: sets or removes one label of one object.

use super::parse_kind;
use crate::cli::{Global, Label};
use crate::failure::{Failure, Result};
use crate::namespace::{Asked, resolve};
use crate::session;
use crate::verbs::{ModifyError, modify};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::Write;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change<'a> {
    Set { key: &'a str, value: &'a str, overwrite: bool },
    Remove { key: &'a str },
}

/// The change that was made to the label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    Set,
    Updated,
    Removed,
}

pub async fn label(args: &Label, global: &Global, out: &mut dyn Write) -> Result<()> {
    let change = parse(&args.label, args.remove, args.overwrite)
        .ok_or_else(|| Failure::message(format!("invalid label {}", args.label)))?;
    let kind = parse_kind(&args.kind).map_err(Failure::Message)?;
    if args.name.is_empty() {
        return Err(Failure::message("resource name may not be empty"));
    }
    let asked = Asked { namespace: args.namespace.namespace.as_deref(), all: false };
    let namespace = resolve(kind, "", asked).map_err(|error| Failure::message(error.to_string()))?;
    // Messages name the kind as the user typed it.
    let what = format!("{} {}", args.kind, args.name);
    let store = session::connect(&args.connection, global).await?;
    let done = Cell::new(Done::Set);
    let result = modify(&store, (kind, &namespace, &args.name), |mut resource| {
        done.set(change_labels(&mut resource.metadata_mut().labels, change, &what)?);
        Ok(resource)
    })
    .await;
    match result {
        Ok(_) => {
            let (Change::Set { key, .. } | Change::Remove { key }) = change;
            match done.get() {
                Done::Set => writeln!(out, "Successfully set label {key} on {what}")?,
                Done::Updated => writeln!(out, "Successfully updated label {key} on {what}")?,
                Done::Removed => writeln!(out, "Successfully removed label {key} from {what}")?,
            }
            Ok(())
        }
        Err(ModifyError::Change(refusal)) => Err(Failure::Message(refusal)),
        Err(error) if error.is_missing() => Err(Failure::message(format!("{what} not found"))),
        Err(error) => Err(Failure::message(format!("failed to update {what}, label not changed: {error}"))),
    }
}

fn parse(text: &str, remove: bool, overwrite: bool) -> Option<Change<'_>> {
    match (text.split_once('='), remove) {
        (None, true) if !text.is_empty() => Some(Change::Remove { key: text }),
        (Some((key, value)), false) if !key.is_empty() && !value.contains('=') => {
            Some(Change::Set { key, value, overwrite })
        }
        _ => None,
    }
}

fn change_labels(
    labels: &mut BTreeMap<String, String>,
    change: Change<'_>,
    what: &str,
) -> std::result::Result<Done, String> {
    match change {
        Change::Remove { key } => match labels.remove(key) {
            Some(_) => Ok(Done::Removed),
            None => Err(format!("cannot remove label of {what}, key {key} does not exist")),
        },
        Change::Set { key, value, overwrite } => match labels.get(key) {
            Some(old) if !overwrite && old != value => Err(format!(
                "failed to update label of {what}, key {key} is already present. please use '--overwrite' to set a \
                 new value"
            )),
            old => {
                let done = if old.is_some() { Done::Updated } else { Done::Set };
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
        assert_eq!(parse("a=b", false, true), Some(Change::Set { key: "a", value: "b", overwrite: true }));
        assert_eq!(parse("a=", false, false), Some(Change::Set { key: "a", value: "", overwrite: false }));
        assert_eq!(parse("a", true, false), Some(Change::Remove { key: "a" }));
        for (text, remove) in [("a", false), ("a=b", true), ("a=b=c", false), ("=b", false), ("", true)] {
            assert_eq!(parse(text, remove, false), None, "{text} {remove}");
        }
    }

    #[test]
    fn labels_change() {
        let set = |value, overwrite| Change::Set { key: "k", value, overwrite };
        let mut labels = BTreeMap::new();
        assert_eq!(change_labels(&mut labels, set("1", false), "node n"), Ok(Done::Set));
        assert_eq!(change_labels(&mut labels, set("1", false), "node n"), Ok(Done::Updated));
        assert_eq!(
            change_labels(&mut labels, set("2", false), "node n").unwrap_err(),
            "failed to update label of node n, key k is already present. please use '--overwrite' to set a new value"
        );
        assert_eq!(change_labels(&mut labels, set("2", true), "node n"), Ok(Done::Updated));
        assert_eq!(change_labels(&mut labels, Change::Remove { key: "k" }, "node n"), Ok(Done::Removed));
        assert_eq!(
            change_labels(&mut labels, Change::Remove { key: "k" }, "node n").unwrap_err(),
            "cannot remove label of node n, key k does not exist"
        );
    }
}
