//! Paged lists: limit, continuation and label selector.

use crate::StoreError;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroUsize;
use tortie_model::{StoreValue, ValidationError};

/// Parameters of one page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// Maximum number of entries, counted after the selection.
    pub limit: NonZeroUsize,
    /// Continuation of the previous page; `None` for the first.
    pub after: Option<PageContinuation>,
    pub labels: EntryLabelSelector,
}

/// End of a page, in a form that only the backend interprets. All pages of a list are read at the same revision; with
/// the Kubernetes API this holds for each collection of the range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageContinuation(pub String);

/// A Kubernetes label selector. An empty one selects everything; otherwise all requirements must hold. Entries without
/// labels, such as IPAM records and statuses, count as having an empty set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryLabelSelector(pub Vec<EntryLabelRequirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryLabelRequirement {
    In {
        key: String,
        values: BTreeSet<String>,
    },
    /// Also holds if the label is absent.
    NotIn {
        key: String,
        values: BTreeSet<String>,
    },
    Exists {
        key: String,
    },
    DoesNotExist {
        key: String,
    },
}

impl PageContinuation {
    pub(crate) fn invalid(&self) -> StoreError {
        ValidationError::one("continue", &self.0, "not the continuation of this list").into()
    }
}

impl PageRequest {
    pub fn first(limit: NonZeroUsize) -> PageRequest {
        PageRequest { limit, after: None, labels: EntryLabelSelector::default() }
    }
}

impl EntryLabelSelector {
    pub fn equals(key: &str, value: &str) -> EntryLabelSelector {
        EntryLabelSelector(vec![EntryLabelRequirement::In {
            key: key.to_owned(),
            values: [value.to_owned()].into(),
        }])
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether an entry with this value is selected.
    pub(crate) fn selects(&self, value: &StoreValue) -> bool {
        match value {
            _ if self.is_empty() => true,
            StoreValue::Resource(resource) => self.matches(&resource.metadata().labels),
            _ => self.matches(&BTreeMap::new()),
        }
    }

    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().all(|requirement| match requirement {
            EntryLabelRequirement::In { key, values } => {
                labels.get(key).is_some_and(|value| values.contains(value))
            }
            EntryLabelRequirement::NotIn { key, values } => {
                labels.get(key).is_none_or(|value| !values.contains(value))
            }
            EntryLabelRequirement::Exists { key } => labels.contains_key(key),
            EntryLabelRequirement::DoesNotExist { key } => !labels.contains_key(key),
        })
    }
}

fn join(values: &BTreeSet<String>) -> String {
    values.iter().map(String::as_str).collect::<Vec<_>>().join(",")
}

/// Formats the selector in the syntax of the Kubernetes API.
impl fmt::Display for EntryLabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            match requirement {
                EntryLabelRequirement::In { key, values } => write!(f, "{key} in ({})", join(values))?,
                EntryLabelRequirement::NotIn { key, values } => write!(f, "{key} notin ({})", join(values))?,
                EntryLabelRequirement::Exists { key } => f.write_str(key)?,
                EntryLabelRequirement::DoesNotExist { key } => write!(f, "!{key}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selects_as_kubernetes_does() {
        let values = |values: &[&str]| values.iter().map(|&value| value.to_owned()).collect::<BTreeSet<_>>();
        let key = || "app".to_owned();
        let web: BTreeMap<String, String> = [(key(), "web".to_owned())].into();
        let none = BTreeMap::new();
        for (requirement, text, of_web, of_none) in [
            (
                EntryLabelRequirement::In { key: key(), values: values(&["db", "web"]) },
                "app in (db,web)",
                true,
                false,
            ),
            (EntryLabelRequirement::In { key: key(), values: values(&["db"]) }, "app in (db)", false, false),
            (
                EntryLabelRequirement::NotIn { key: key(), values: values(&["web"]) },
                "app notin (web)",
                false,
                true,
            ),
            (
                EntryLabelRequirement::NotIn { key: key(), values: values(&["db"]) },
                "app notin (db)",
                true,
                true,
            ),
            (EntryLabelRequirement::Exists { key: key() }, "app", true, false),
            (EntryLabelRequirement::DoesNotExist { key: key() }, "!app", false, true),
        ] {
            let selector = EntryLabelSelector(vec![requirement]);
            assert_eq!(selector.to_string(), text);
            assert_eq!((selector.matches(&web), selector.matches(&none)), (of_web, of_none), "{text}");
        }
        let both = EntryLabelSelector(vec![
            EntryLabelRequirement::Exists { key: key() },
            EntryLabelRequirement::DoesNotExist { key: "tier".to_owned() },
        ]);
        assert_eq!(both.to_string(), "app,!tier");
        assert!(both.matches(&web) && !both.matches(&none));
        assert!(EntryLabelSelector::default().matches(&none));
        assert_eq!(EntryLabelSelector::equals("app", "web").to_string(), "app in (web)");
    }
}
