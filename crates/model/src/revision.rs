//! The version of a datastore entry, as assigned by the store.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// An opaque version: compared for equality and passed back to the store it came from. Whether two revisions
/// can be ordered depends on the store, so the only comparison is [`Revision::is_at_or_before`], which
/// returns `None` if the order is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Revision(RevisionForm);

/// etcd revisions are numbers; Kubernetes guarantees only an opaque string, which is nearly always a number
/// too.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum RevisionForm {
    Number(u64),
    Text(Arc<str>),
}

/// Error for parsing a revision from an empty string.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a revision is not empty")]
pub struct EmptyRevisionError;

impl Revision {
    /// Returns the revision as a number, if it is one.
    pub fn number(&self) -> Option<u64> {
        match self.0 {
            RevisionForm::Number(number) => Some(number),
            RevisionForm::Text(_) => None,
        }
    }

    /// Returns whether this revision is equal to or older than `other`; `None` if the store does not order
    /// its revisions. Meaningful only for two revisions of the same store.
    pub fn is_at_or_before(&self, other: &Revision) -> Option<bool> {
        if self == other {
            return Some(true);
        }
        Some(self.number()? <= other.number()?)
    }
}

impl From<u64> for Revision {
    fn from(number: u64) -> Revision {
        Revision(RevisionForm::Number(number))
    }
}

impl FromStr for Revision {
    type Err = EmptyRevisionError;

    fn from_str(text: &str) -> Result<Revision, EmptyRevisionError> {
        if text.is_empty() {
            return Err(EmptyRevisionError);
        }
        // Treat the text as a number only if formatting the number reproduces the text: the store must get
        // back exactly the text that it assigned.
        match text.parse::<u64>() {
            Ok(number) if number.to_string() == text => Ok(number.into()),
            _ => Ok(Revision(RevisionForm::Text(text.into()))),
        }
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            RevisionForm::Number(number) => write!(f, "{number}"),
            RevisionForm::Text(text) => f.write_str(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revision(text: &str) -> Revision {
        text.parse().unwrap()
    }

    #[test]
    fn every_text_is_handed_back_unchanged() {
        for text in ["0", "17", "18446744073709551615", "18446744073709551616", "017", "+5", "ab/7", " 1"] {
            assert_eq!(revision(text).to_string(), text);
        }
        assert_eq!("".parse::<Revision>(), Err(EmptyRevisionError));
        assert_eq!(revision("17"), Revision::from(17));
        assert_ne!(revision("017"), Revision::from(17));
    }

    #[test]
    fn only_numbers_have_an_order() {
        assert_eq!(revision("9").is_at_or_before(&revision("10")), Some(true));
        assert_eq!(revision("10").is_at_or_before(&revision("9")), Some(false));
        assert_eq!(revision("10").is_at_or_before(&revision("10")), Some(true));
        assert_eq!(revision("a").is_at_or_before(&revision("a")), Some(true));
        assert_eq!(revision("a").is_at_or_before(&revision("b")), None);
        assert_eq!(revision("a").is_at_or_before(&revision("1")), None);
    }

    #[test]
    fn stays_small() {
        assert!(size_of::<Revision>() <= 16);
    }
}
