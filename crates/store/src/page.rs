//! Paged lists: limit, continuation and label selector.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroUsize;
use tortie_model::Value;

/// Parameters of one page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Maximum number of entries, counted after the selection.
    pub limit: NonZeroUsize,
    /// Continuation of the previous page; `None` for the first.
    pub after: Option<Continuation>,
    pub labels: LabelSelector,
}

/// End of a page, in a form that only the backend interprets. All pages of a list are read at the same revision; with
/// the Kubernetes API this holds for each collection of the range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continuation(pub String);

/// A Kubernetes label selector. An empty one selects everything; otherwise all requirements must hold. Entries without
/// labels, such as IPAM records and statuses, count as having an empty set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector(pub Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requirement {
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

impl Page {
    pub fn first(limit: NonZeroUsize) -> Page {
        Page { limit, after: None, labels: LabelSelector::default() }
    }
}

impl LabelSelector {
    pub fn equals(key: &str, value: &str) -> LabelSelector {
        LabelSelector(vec![Requirement::In { key: key.to_owned(), values: [value.to_owned()].into() }])
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether an entry with this value is selected.
    pub(crate) fn selects(&self, value: &Value) -> bool {
        match value {
            _ if self.is_empty() => true,
            Value::Resource(resource) => self.matches(&resource.metadata().labels),
            _ => self.matches(&BTreeMap::new()),
        }
    }

    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().all(|requirement| match requirement {
            Requirement::In { key, values } => labels.get(key).is_some_and(|value| values.contains(value)),
            Requirement::NotIn { key, values } => labels.get(key).is_none_or(|value| !values.contains(value)),
            Requirement::Exists { key } => labels.contains_key(key),
            Requirement::DoesNotExist { key } => !labels.contains_key(key),
        })
    }
}

/// Formats the selector in the syntax of the Kubernetes API.
impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |values: &BTreeSet<String>| values.iter().cloned().collect::<Vec<_>>().join(",");
        for (index, requirement) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            match requirement {
                Requirement::In { key, values } => write!(f, "{key} in ({})", list(values))?,
                Requirement::NotIn { key, values } => write!(f, "{key} notin ({})", list(values))?,
                Requirement::Exists { key } => f.write_str(key)?,
                Requirement::DoesNotExist { key } => write!(f, "!{key}")?,
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
            (Requirement::In { key: key(), values: values(&["db", "web"]) }, "app in (db,web)", true, false),
            (Requirement::In { key: key(), values: values(&["db"]) }, "app in (db)", false, false),
            (Requirement::NotIn { key: key(), values: values(&["web"]) }, "app notin (web)", false, true),
            (Requirement::NotIn { key: key(), values: values(&["db"]) }, "app notin (db)", true, true),
            (Requirement::Exists { key: key() }, "app", true, false),
            (Requirement::DoesNotExist { key: key() }, "!app", false, true),
        ] {
            let selector = LabelSelector(vec![requirement]);
            assert_eq!(selector.to_string(), text);
            assert_eq!((selector.matches(&web), selector.matches(&none)), (of_web, of_none), "{text}");
        }
        let both = LabelSelector(vec![
            Requirement::Exists { key: key() },
            Requirement::DoesNotExist { key: "tier".to_owned() },
        ]);
        assert_eq!(both.to_string(), "app,!tier");
        assert!(both.matches(&web) && !both.matches(&none));
        assert!(LabelSelector::default().matches(&none));
        assert_eq!(LabelSelector::equals("app", "web").to_string(), "app in (web)");
    }
}
