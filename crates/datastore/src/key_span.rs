//! The three forms of a key range in the protocol: a single key, `[key, end)`, and all keys from a given one on.

use bytes::Bytes;
use std::ops::Bound;

pub type KeyBounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySpan {
    Key(Bytes),
    Range(Bytes, Bytes),
    From(Bytes),
}

impl KeySpan {
    pub fn new(key: &Bytes, range_end: &Bytes) -> KeySpan {
        match range_end.as_ref() {
            [] => KeySpan::Key(key.clone()),
            [0] => KeySpan::From(key.clone()),
            _ => KeySpan::Range(key.clone(), range_end.clone()),
        }
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        match self {
            KeySpan::Key(only) => key == only,
            KeySpan::Range(from, end) => key >= from && key < end,
            KeySpan::From(from) => key >= from,
        }
    }

    /// Returns the bounds for an ordered scan; `None` if the range is empty.
    pub fn bounds(&self) -> Option<KeyBounds<'_>> {
        match self {
            KeySpan::Key(only) => Some((Bound::Included(only), Bound::Included(only))),
            KeySpan::Range(from, end) if from < end => Some((Bound::Included(from), Bound::Excluded(end))),
            KeySpan::Range(..) => None,
            KeySpan::From(from) => Some((Bound::Included(from), Bound::Unbounded)),
        }
    }

    /// Returns the prefix if the range consists of exactly the keys with that prefix.
    pub fn prefix(&self) -> Option<&Bytes> {
        match self {
            KeySpan::Range(from, end) if is_prefix_end(from, end) => Some(from),
            _ => None,
        }
    }
}

/// Returns whether `end` is the first key after all keys that start with `prefix`: its last byte that is not 0xff,
/// plus one.
fn is_prefix_end(prefix: &[u8], end: &[u8]) -> bool {
    let Some(last) = prefix.iter().rposition(|byte| *byte != 0xff) else { return false };
    end.len() == last + 1 && end[..last] == prefix[..last] && end[last] == prefix[last] + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn span(key: &[u8], end: &[u8]) -> KeySpan {
        KeySpan::new(&Bytes::copy_from_slice(key), &Bytes::copy_from_slice(end))
    }

    #[test]
    fn prefixes_are_recognised() {
        assert_eq!(span(b"/a/", b"/a0").prefix().map(|p| p.as_ref()), Some(&b"/a/"[..]));
        assert_eq!(span(b"a\xff", b"b").prefix().map(|p| p.as_ref()), Some(&b"a\xff"[..]));
        assert_eq!(span(b"a", b"c").prefix(), None);
        assert_eq!(span(b"\xff", b"\xff\xff").prefix(), None);
        assert_eq!(span(b"a", b"").prefix(), None);
    }

    proptest! {
        #[test]
        fn bounds_agree_with_contains(key in ".{0,3}", end in ".{0,3}", probe in ".{0,4}") {
            let span = span(key.as_bytes(), end.as_bytes());
            let inside = span.bounds().is_some_and(|bounds| {
                std::ops::RangeBounds::<[u8]>::contains(&bounds, probe.as_bytes())
            });
            prop_assert_eq!(inside, span.contains(probe.as_bytes()));
            if let Some(prefix) = span.prefix() {
                prop_assert_eq!(probe.as_bytes().starts_with(prefix), span.contains(probe.as_bytes()));
            }
        }
    }
}
