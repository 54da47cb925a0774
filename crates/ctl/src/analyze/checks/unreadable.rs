//! Finds datastore entries that cannot be decoded: an undecodable policy is not enforced as intended.

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
