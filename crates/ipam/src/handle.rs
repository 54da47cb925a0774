//! The handle record: the number of addresses that a handle has per block. Addresses are counted before the block is
//! written and until the block no longer contains them.

use crate::records::{Versioned, handle_key};
use ipnet::IpNet;
use tortie_model::Value;
use tortie_model::ipam::Handle;
use tortie_store::Revision;
use tortie_store::operation::{Expected, Reversible, Step};

/// A handle as last read or written.
#[derive(Clone, Debug, PartialEq)]
pub struct HandleRecord {
    pub id: String,
    /// `None` if the handle does not exist. For a new container this is assumed without a read: if it is wrong, the
    /// store refuses the write.
    found: Option<Versioned<Handle>>,
}

impl HandleRecord {
    pub fn new(id: &str, found: Option<Versioned<Handle>>) -> HandleRecord {
        HandleRecord { id: id.to_owned(), found }
    }

    /// Returns whether the handle was read or written, rather than assumed to be absent.
    pub fn is_known(&self) -> bool {
        self.found.is_some()
    }

    /// Returns the blocks in which the handle has addresses according to the record.
    pub fn blocks(&self) -> impl Iterator<Item = &str> {
        self.found.iter().flat_map(|found| found.value.block.keys().map(String::as_str))
    }

    /// Returns the step that adds `count` addresses of a block, and the resulting record.
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

    /// Returns the step that subtracts `count` addresses, or `None` if nothing changes.
    pub fn subtract(&self, cidr: IpNet, count: u32) -> Option<Step> {
        let found = self.found.as_ref()?;
        let mut handle = found.value.clone();
        handle.subtract(cidr, count).then(|| self.write(handle, &found.revision))
    }

    /// Returns the step that removes these blocks from the handle, whatever their counts: counts may be too high.
    pub fn leave(&self, blocks: &[String]) -> Option<Step> {
        let found = self.found.as_ref()?;
        let mut handle = found.value.clone();
        handle.block.retain(|cidr, _| !blocks.contains(cidr));
        Some(self.write(handle, &found.revision))
    }

    /// Stores the result of a write; without a revision the record becomes unknown.
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
