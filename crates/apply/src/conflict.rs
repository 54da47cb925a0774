//! Conflicts: fields that an applier wants to set and that another manager owns.

use crate::managed::{ManagerId, ManagerOperation};
use crate::path::FieldPath;
use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplyConflict {
    pub owner: ManagerId,
    /// When the owner last wrote the field.
    pub time: Option<String>,
    pub path: FieldPath,
}

impl ApplyConflict {
    /// Returns the owner as error messages name it: `"kubectl-edit" using projectcalico.org/v3`.
    pub fn owner(&self) -> String {
        let ManagerId { manager, operation, api_version, subresource } = &self.owner;
        let mut text = format!("{manager:?}");
        if !subresource.is_empty() {
            text.push_str(&format!(" with subresource {subresource:?}"));
        }
        if *operation == ManagerOperation::Update {
            text.push_str(&format!(" using {api_version}"));
        }
        text
    }
}

impl fmt::Display for ApplyConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "conflict with {}", self.owner())
    }
}

/// Returns the error message for an applier.
pub fn describe_conflicts(conflicts: &[ApplyConflict]) -> String {
    if let [only] = conflicts {
        return format!("Apply failed with 1 conflict: {only}: {}", only.path);
    }
    let mut lines = Vec::new();
    let mut owner: Option<&ManagerId> = None;
    for conflict in conflicts {
        if owner != Some(&conflict.owner) {
            lines.push(format!("conflicts with {}:", conflict.owner()));
            owner = Some(&conflict.owner);
        }
        lines.push(format!("- {}", conflict.path));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}
