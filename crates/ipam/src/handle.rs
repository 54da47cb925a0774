//! The record of where a handle has addresses: counted before the block has them, and until it has them no more.

use crate::records::{Versioned, handle_key};
use ipnet::IpNet;
use tortie_model::Value;
use tortie_model::ipam::Handle;
use tortie_store::Revision;
use tortie_store::operation::{Expected, Reversible, Step};

/// A handle as far as is known.
#[derive(Clone, Debug, PartialEq)]
pub struct HandleRecord {
    pub id: String,
    /// `None` if there is none, which for a new container is a safe guess: a wrong one is refused by the store.
    found: Option<Versioned<Handle>>,
}

impl HandleRecord {
    pub fn new(id: &str, found: Option<Versioned<Handle>>) -> HandleRecord {
        HandleRecord { id: id.to_owned(), found }
    }

    /// Whether it was read or written, not only guessed to be absent.
    pub fn is_known(&self) -> bool {
        self.found.is_some()
    }

    /// The blocks it has addresses in, as far as it knows.
    pub fn blocks(&self) -> impl Iterator<Item = &str> {
        self.found.iter().flat_map(|found| found.value.block.keys().map(String::as_str))
    }

    /// The step for `count` more addresses of a block, and the record after it.
    pub fn add(&self, cidr: IpNet, count: u32) -> (Reversible, Handle) {
        let key = handle_key(&self.id);
        match &self.found {
            None => {
                let mut handle = Handle::default();
                handle.add(cidr, count);
                (Reversible::create(key, Value::Handle(handle.clone())), handle)
            }
            Some(found) => {
                let mut handle = found.value.clone();
                handle.add(cidr, count);
                let (from, to) = (Value::Handle(found.value.clone()), Value::Handle(handle.clone()));
                (Reversible::update(key, from, to, found.revision.clone()), handle)
            }
        }
    }

    /// The step for `count` addresses fewer; nothing if there is nothing to change.
    pub fn subtract(&self, cidr: IpNet, count: u32) -> Option<Step> {
        let found = self.found.as_ref()?;
        let mut handle = found.value.clone();
        handle.subtract(cidr, count).then(|| self.write(handle, &found.revision))
    }

    /// The step for no addresses in these blocks any more, whatever the counts say: they may be too high.
    pub fn leave(&self, blocks: &[String]) -> Option<Step> {
        let found = self.found.as_ref()?;
        let mut handle = found.value.clone();
        handle.block.retain(|cidr, _| !blocks.contains(cidr));
        Some(self.write(handle, &found.revision))
    }

    /// What stands after a write; nothing if that is not known.
    pub fn written(&mut self, handle: Handle, revision: Option<Revision>) {
        self.found = revision.map(|revision| Versioned { value: handle, revision });
    }

    fn write(&self, handle: Handle, revision: &Revision) -> Step {
        let (key, expected) = (handle_key(&self.id), Expected::At(revision.clone()));
        if handle.block.is_empty() {
            Step::Delete { key, expected }
        } else {
            Step::Update { key, value: Value::Handle(handle), expected }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn stored(value: &Value) -> String {
        String::from_utf8(value.encode()).unwrap()
    }

    fn after(step: Option<Step>) -> String {
        match step {
            Some(Step::Create { value, .. } | Step::Update { value, .. }) => stored(&value),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn a_handle_comes_and_goes_with_its_addresses() {
        let mut record = HandleRecord::new("net.a", None);
        let (_, handle) = record.add(cidr("10.65.3.8/29"), 1);
        assert_eq!(stored(&Value::Handle(handle.clone())), r#"{"block":{"10.65.3.8/29":1},"deleted":false}"#);
        record.written(handle, Some(7.into()));
        let (_, handle) = record.add(cidr("fd00::/122"), 2);
        record.written(handle, Some(8.into()));
        assert_eq!(record.blocks().collect::<Vec<_>>(), ["10.65.3.8/29", "fd00::/122"]);

        let fewer = record.subtract(cidr("fd00::/122"), 1);
        assert_eq!(after(fewer), r#"{"block":{"10.65.3.8/29":1,"fd00::/122":1},"deleted":false}"#);
        let none = record.subtract(cidr("fd00::/122"), 9);
        assert_eq!(after(none), r#"{"block":{"10.65.3.8/29":1},"deleted":false}"#);
        assert!(record.subtract(cidr("10.0.0.0/29"), 1).is_none());
        let five = Handle { block: [("10.65.3.8/29".to_owned(), 5)].into(), ..Handle::default() };
        record.written(five, Some(9.into()));
        assert!(matches!(
            record.leave(&["10.65.3.8/29".to_owned()]),
            Some(Step::Delete { expected: Expected::At(revision), .. }) if revision == Revision::from(9)
        ));
    }

    #[test]
    fn there_is_nothing_to_take_from_a_handle_that_is_not_there() {
        let record = HandleRecord::new("net.a", None);
        assert!(record.subtract(cidr("10.0.0.0/29"), 1).is_none() && record.leave(&[]).is_none());
    }
}
