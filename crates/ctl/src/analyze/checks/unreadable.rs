//! Entries of the datastore that nobody can read: a policy among them is not enforced as its author meant.

use super::super::Subject;
use super::super::finding::Finding;

pub fn entries(subject: &Subject) -> Vec<Finding> {
    let finding = |reason: &String| Finding {
        object: "datastore".to_owned(),
        check: "unreadable-entry",
        reason: format!("an entry cannot be read: {reason}"),
        advice: "Write the object again with `calicoctl apply`, or delete it.".to_owned(),
    };
    subject.cluster.unreadable().iter().map(finding).collect()
}
