//! The handle record: the number of addresses that a handle has per block. Addresses are counted before the block is
//! written and until the block no longer contains them.

use crate::records::{VersionedValue, handle_key};
use ipnet::IpNet;
use tortie_model::StoreValue;
use tortie_model::ipam::AddressHandle;
use tortie_store::Revision;
use tortie_store::operation::{ExpectedRevision, OperationStep, ReversibleStep};

/// A handle as last read or written.
#[derive(Clone, Debug, PartialEq)]
pub struct HandleRecord {
    pub id: String,
    /// `None` if the handle does not exist. For a new container this is assumed without a read: if it is wrong, the
    /// store refuses the write.
    found: Option<VersionedValue<AddressHandle>>,
}

impl HandleRecord {
    pub fn new(id: &str, found: Option<VersionedValue<AddressHandle>>) -> HandleRecord {
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
    pub fn add(&self, cidr: IpNet, count: u32) -> (ReversibleStep, AddressHandle) {
        let key = handle_key(&self.id);
        match &self.found {
            None => {
                let mut handle = AddressHandle::default();
                handle.add(cidr, count);
                (ReversibleStep::create(key, StoreValue::Handle(handle.clone())), handle)
            }
            Some(found) => {
                let mut handle = found.value.clone();
                handle.add(cidr, count);
                let from = StoreValue::Handle(found.value.clone());
                let to = StoreValue::Handle(handle.clone());
                (ReversibleStep::update(key, from, to, found.revision.clone()), handle)
            }
        }
    }

    /// Returns the step that subtracts `count` addresses, or `None` if nothing changes.
    pub fn subtract(&self, cidr: IpNet, count: u32) -> Option<OperationStep> {
        let found = self.found.as_ref()?;
        let mut handle = found.value.clone();
        handle.subtract(cidr, count).then(|| self.write(handle, &found.revision))
    }

    /// Returns the step that removes these blocks from the handle, whatever their counts: counts may be too high.
    pub fn leave(&self, blocks: &[String]) -> Option<OperationStep> {
        let found = self.found.as_ref()?;
        let mut handle = found.value.clone();
        handle.block.retain(|cidr, _| !blocks.contains(cidr));
        Some(self.write(handle, &found.revision))
    }

    /// Stores the result of a write; without a revision the record becomes unknown.
    pub fn written(&mut self, handle: AddressHandle, revision: Option<Revision>) {
        self.found = revision.map(|revision| VersionedValue { value: handle, revision });
    }

    fn write(&self, handle: AddressHandle, revision: &Revision) -> OperationStep {
        let key = handle_key(&self.id);
        let expected = ExpectedRevision::At(revision.clone());
        if handle.block.is_empty() {
            OperationStep::Delete { key, expected }
        } else {
            OperationStep::Update { key, value: StoreValue::Handle(handle), expected }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn stored(value: &StoreValue) -> String {
        String::from_utf8(value.encode()).unwrap()
    }

    fn after(step: Option<OperationStep>) -> String {
        match step {
            Some(OperationStep::Create { value, .. } | OperationStep::Update { value, .. }) => stored(&value),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn a_handle_comes_and_goes_with_its_addresses() {
        let mut record = HandleRecord::new("net.a", None);
        let (_, handle) = record.add(cidr("10.65.3.8/29"), 1);
        assert_eq!(
            stored(&StoreValue::Handle(handle.clone())),
            r#"{"block":{"10.65.3.8/29":1},"deleted":false}"#
        );
        record.written(handle, Some(7.into()));
        let (_, handle) = record.add(cidr("fd00::/122"), 2);
        record.written(handle, Some(8.into()));
        assert_eq!(record.blocks().collect::<Vec<_>>(), ["10.65.3.8/29", "fd00::/122"]);

        let fewer = record.subtract(cidr("fd00::/122"), 1);
        assert_eq!(after(fewer), r#"{"block":{"10.65.3.8/29":1,"fd00::/122":1},"deleted":false}"#);
        let none = record.subtract(cidr("fd00::/122"), 9);
        assert_eq!(after(none), r#"{"block":{"10.65.3.8/29":1},"deleted":false}"#);
        assert!(record.subtract(cidr("10.0.0.0/29"), 1).is_none());
        let five =
            AddressHandle { block: [("10.65.3.8/29".to_owned(), 5)].into(), ..AddressHandle::default() };
        record.written(five, Some(9.into()));
        assert!(matches!(
            record.leave(&["10.65.3.8/29".to_owned()]),
            Some(OperationStep::Delete { expected: ExpectedRevision::At(revision), .. }) if revision == Revision::from(9)
        ));
    }

    #[test]
    fn a_missing_handle_has_nothing_to_subtract() {
        let record = HandleRecord::new("net.a", None);
        assert!(record.subtract(cidr("10.0.0.0/29"), 1).is_none() && record.leave(&[]).is_none());
    }
}
