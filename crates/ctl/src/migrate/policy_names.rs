//! Renames policies of the default tier that older versions stored as `default.NAME` to `NAME`.

use crate::cli::{ConnectionArgs, GlobalArgs};
use crate::failure::{CommandError, CommandResult};
use crate::session::connect;
use std::io::Write;
use tortie_model::{KeyRange, Kind, StoreKey, StoreValue};
use tortie_store::operation::{ExpectedRevision, OperationStep};
use tortie_store::{OperationOutcome, StoreEntry, StoreOperation};

const RENAMED_KINDS: &[Kind] = &[
    Kind::GlobalNetworkPolicy,
    Kind::NetworkPolicy,
    Kind::StagedGlobalNetworkPolicy,
    Kind::StagedNetworkPolicy,
];

pub async fn migrate(
    connection: &ConnectionArgs,
    global: &GlobalArgs,
    out: &mut dyn Write,
) -> CommandResult<()> {
    let store = connect(connection, global).await?;
    let mut migrated = 0;
    let mut errors = Vec::new();
    for kind in RENAMED_KINDS.iter().copied() {
        let listing = store.client().list(&KeyRange::all(kind)).await?;
        errors.extend(listing.unreadable.iter().map(ToString::to_string));
        for entry in listing.entries {
            let Some(operation) = rename_policy(entry) else { continue };
            match store.client().carry_out(operation.clone()).await {
                Ok(OperationOutcome::Done(_)) => migrated += 1,
                Ok(OperationOutcome::Refused(refused)) => {
                    errors.push(describe_conflict(&refused.key, &operation));
                }
                Err(error) => errors.push(error.to_string()),
            }
        }
    }
    if !errors.is_empty() {
        let failed = errors.len();
        writeln!(out, "Migrated {migrated} policies, {failed} failed.")?;
        return Err(CommandError::message(errors.join("\n")));
    }
    writeln!(out, "Policy name migration complete, migrated {migrated} policies.")?;
    Ok(())
}

fn describe_conflict(key: &StoreKey, operation: &StoreOperation) -> String {
    if operation.commit.iter().any(|create| create.key() == key) {
        format!("{key} exists already; delete it or the old one, then run this again")
    } else {
        format!("{key} was changed meanwhile; run this again")
    }
}

/// Returns the operation that moves a policy from its old key to the key of its name; `None` if it is there
/// already. The new entry is created before the old one is deleted, so that the policy exists at all times.
fn rename_policy(entry: StoreEntry) -> Option<StoreOperation> {
    let StoreKey::Resource { kind, namespace, name } = &entry.key else { return None };
    let StoreValue::Resource(resource) = &entry.value else { return None };
    let new = &resource.metadata().name;
    if name.strip_prefix("default.") != Some(new.as_str()) {
        return None;
    }
    let create =
        OperationStep::Create { key: StoreKey::resource(*kind, namespace, new), value: entry.value.clone() };
    let delete = OperationStep::Delete { key: entry.key, expected: ExpectedRevision::At(entry.revision) };
    Some(StoreOperation { finish: vec![delete], ..StoreOperation::one(create) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tortie_store::EntryChange;

    fn stored(key: &str, json: &str) -> StoreEntry {
        let key = StoreKey::resource(Kind::GlobalNetworkPolicy, "", key);
        let value = StoreValue::decode(&key, json.as_bytes()).unwrap();
        StoreEntry { key, value, revision: 5.into() }
    }

    const OLD: &str = r#"{"kind":"GlobalNetworkPolicy","apiVersion":"projectcalico.org/v3","metadata":{"name":"default.web"},"spec":{"tier":"default"}}"#;
    const NAMED: &str = r#"{"kind":"GlobalNetworkPolicy","apiVersion":"projectcalico.org/v3","metadata":{"name":"default.web","annotations":{"projectcalico.org/metadata":"{\"name\":\"default.web\"}"}},"spec":{"tier":"default"}}"#;
    const TIERED: &str = r#"{"kind":"GlobalNetworkPolicy","apiVersion":"projectcalico.org/v3","metadata":{"name":"platform.web"},"spec":{"tier":"platform"}}"#;

    #[test]
    fn only_policies_under_an_old_key_are_moved() {
        let changes = rename_policy(stored("default.web", OLD)).unwrap().fold();
        let [EntryChange::Create { key: new, .. }, EntryChange::Delete { key: old, revision }] =
            changes.as_slice()
        else {
            panic!("{changes:?}")
        };
        assert_eq!(*revision, 5.into());
        assert_eq!(new.to_string(), "GlobalNetworkPolicy(web)");
        assert_eq!(old.to_string(), "GlobalNetworkPolicy(default.web)");
        // The name really begins with "default.", according to the annotation.
        assert!(rename_policy(stored("default.web", NAMED)).is_none());
        assert!(rename_policy(stored("platform.web", TIERED)).is_none());
    }
}
