//! Decides whether permissions cover a range of keys. Adjacent permissions together cover a range across their
//! boundary.

use crate::key_span::KeySpan;
use bytes::Bytes;

/// A half-open interval of keys; without an end it is unbounded.
type KeyInterval = (Bytes, Option<Bytes>);

fn to_interval(span: &KeySpan) -> KeyInterval {
    match span {
        KeySpan::Key(key) => (key.clone(), Some([key.as_ref(), &[0]].concat().into())),
        KeySpan::Range(from, end) => (from.clone(), Some(end.clone())),
        KeySpan::From(from) => (from.clone(), None),
    }
}

pub fn covers<'a>(permitted: impl Iterator<Item = &'a KeySpan>, wanted: &KeySpan) -> bool {
    let mut permitted: Vec<KeyInterval> = permitted.map(to_interval).collect();
    permitted.sort();
    let (mut reached, end) = to_interval(wanted);
    for (from, until) in permitted {
        if from > reached {
            return false;
        }
        match until {
            None => return true,
            Some(until) if until > reached => reached = until,
            Some(_) => {}
        }
        if end.as_ref().is_some_and(|end| reached >= *end) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(key: &'static str, end: &'static str) -> KeySpan {
        KeySpan::new(&Bytes::from(key), &Bytes::from(end))
    }

    #[test]
    fn permissions_add_up() {
        let permitted = [span("b", "d"), span("d", "f"), span("x", ""), span("y", "\0")];
        let may = |key, end| covers(permitted.iter(), &span(key, end));
        assert!(
            may("b", "") && may("b", "f") && may("c", "e") && may("x", "") && may("z", "") && may("yy", "\0")
        );
        assert!(
            !may("a", "")
                && !may("f", "")
                && !may("a", "c")
                && !may("e", "g")
                && !may("x", "y")
                && !may("b", "\0")
        );
        assert!(!covers([].iter(), &span("a", "")));
    }
}
