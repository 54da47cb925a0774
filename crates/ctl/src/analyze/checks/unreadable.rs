//! Finds datastore entries that cannot be decoded: an undecodable policy is not enforced as intended.

use super::super::AnalyzedCluster;
use super::super::finding::AnalysisFinding;

pub fn find_unreadable_entries(subject: &AnalyzedCluster) -> Vec<AnalysisFinding> {
    let unreadable = subject.cluster.unreadable().iter();
    unreadable
        .map(|reason| AnalysisFinding {
            object: "datastore".to_owned(),
            check: "unreadable-entry",
            reason: format!("an entry cannot be read: {reason}"),
            advice: "Write the object again with `calicoctl apply`, or delete it.".to_owned(),
        })
        .collect()
}
