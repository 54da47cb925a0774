//! Errors in received messages.

use thiserror::Error;
use tortie_plan::{RuleId, SetId, WorkloadId};

/// Maximum number of characters of a received value in an error.
const MAX_QUOTED_CHARS: usize = 80;

/// A field that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    #[error("{field} is missing")]
    Missing { field: &'static str },
    #[error("{field}: {value:?} is not {expected}")]
    Invalid { field: &'static str, value: String, expected: &'static str },
    #[error("{field}: {count} entries; at most {max} are accepted")]
    TooMany { field: &'static str, count: usize, max: usize },
}

impl DecodeError {
    pub(crate) fn invalid(
        field: &'static str,
        value: impl std::fmt::Display,
        expected: &'static str,
    ) -> DecodeError {
        let value = value.to_string().chars().take(MAX_QUOTED_CHARS).collect();
        DecodeError::Invalid { field, value, expected }
    }
}

/// An object that is used differently from its message, because a field cannot be read. It never allows more than the
/// message intended.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{object}: {error}")]
pub struct DecodeProblem {
    pub object: ProblemObject,
    pub error: DecodeError,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProblemObject {
    /// A rule that denies ignores the criterion, any other rule matches nothing. All rules of a direction with too many
    /// rules are replaced by one that denies everything; the problem names the first.
    Rule(RuleId),
    /// The set is unknown from now on.
    Set(SetId),
    /// The endpoint is unknown from now on.
    Endpoint(WorkloadId),
}

impl std::fmt::Display for ProblemObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ProblemObject::Rule(id) => id.fmt(f),
            ProblemObject::Set(id) => write!(f, "set {id}"),
            ProblemObject::Endpoint(id) => {
                write!(f, "endpoint {}/{}/{}", id.orchestrator, id.workload, id.endpoint)
            }
        }
    }
}
