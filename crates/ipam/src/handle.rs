//! The record of where a handle has addresses, changed in the same transaction as the block.

use crate::ledger::{Standing, handle_key};
use ipnet::IpNet;
use tortie_model::Value;
use tortie_model::ipam::Handle;
use tortie_store::{Change, Revision};

/// A handle as far as is known.
#[derive(Clone, Debug, PartialEq)]
pub struct HandleRecord {
    pub id: String,
    /// `None` if there is none, which for a new container is a safe guess: a wrong one is refused by the store.
    standing: Option<Standing<Handle>>,
}

impl HandleRecord {
    pub fn new(id: &str, standing: Option<Standing<Handle>>) -> HandleRecord {
        HandleRecord { id: id.to_owned(), standing }
    }

    /// Whether it was read or written, not only guessed to be absent.
    pub fn is_known(&self) -> bool {
        self.standing.is_some()
    }

    /// The blocks it has addresses in, as far as it knows.
    pub fn blocks(&self) -> impl Iterator<Item = &str> {
        self.standing.iter().flat_map(|standing| standing.value.block.keys().map(String::as_str))
    }

    /// The change for `count` more addresses of a block, and the record after it.
    pub fn add(&self, cidr: IpNet, count: u32) -> (Change, Handle) {
        let mut handle = self.standing.as_ref().map(|found| found.value.clone()).unwrap_or_default();
        let total = handle.block.entry(cidr.to_string()).or_default();
        *total = total.saturating_add(i64::from(count));
        (self.write(&handle), handle)
    }

    /// The change for `count` addresses fewer; nothing if there is nothing to change.
    pub fn subtract(&self, cidr: IpNet, count: u32) -> Option<Change> {
        let standing = self.standing.as_ref()?;
        let mut handle = standing.value.clone();
        let left = handle.block.get_mut(&cidr.to_string())?;
        *left = left.saturating_sub(i64::from(count));
        if *left <= 0 {
            handle.block.remove(&cidr.to_string());
        }
        Some(self.write_or_delete(handle, standing.revision.clone()))
    }

    /// The change for no addresses in these blocks any more, whatever the counts say: they may be too high.
    pub fn leave(&self, blocks: &[String]) -> Option<Change> {
        let standing = self.standing.as_ref()?;
        let mut handle = standing.value.clone();
        handle.block.retain(|cidr, _| !blocks.contains(cidr));
        Some(self.write_or_delete(handle, standing.revision.clone()))
    }

    /// The change that makes the handle what it is not yet.
    pub fn create(&self, handle: &Handle) -> Change {
        Change::Create { key: handle_key(&self.id), value: Value::Handle(handle.clone()) }
    }

    /// Goes on as if this had been written.
    pub fn assume(&mut self, handle: Handle) {
        self.written(handle, 0.into());
    }

    /// What stands after a write.
    pub fn written(&mut self, handle: Handle, revision: Revision) {
        self.standing = Some(Standing { value: handle, revision });
    }

    fn write_or_delete(&self, handle: Handle, revision: Revision) -> Change {
        if handle.block.is_empty() {
            Change::Delete { key: handle_key(&self.id), revision }
        } else {
            self.write(&handle)
        }
    }

    fn write(&self, handle: &Handle) -> Change {
        let (key, value) = (handle_key(&self.id), Value::Handle(handle.clone()));
        match &self.standing {
            None => Change::Create { key, value },
            Some(standing) => Change::Update { key, value, revision: standing.revision.clone() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn stored(change: &Change) -> String {
        match change {
            Change::Create { value, .. } | Change::Update { value, .. } => {
                String::from_utf8(value.encode()).unwrap()
            }
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn a_handle_comes_and_goes_with_its_addresses() {
        let mut record = HandleRecord::new("net.a", None);
        let (create, handle) = record.add(cidr("10.65.3.8/29"), 1);
        assert_eq!(stored(&create), r#"{"block":{"10.65.3.8/29":1},"deleted":false}"#);
        assert!(matches!(create, Change::Create { .. }));
        record.written(handle, 7.into());
        let (update, handle) = record.add(cidr("fd00::/122"), 2);
        assert!(matches!(update, Change::Update { revision, .. } if revision == 7.into()));
        record.written(handle, 8.into());
        assert_eq!(record.blocks().collect::<Vec<_>>(), ["10.65.3.8/29", "fd00::/122"]);

        let fewer = record.subtract(cidr("fd00::/122"), 1).unwrap();
        assert_eq!(stored(&fewer), r#"{"block":{"10.65.3.8/29":1,"fd00::/122":1},"deleted":false}"#);
        let none = record.subtract(cidr("fd00::/122"), 9).unwrap();
        assert_eq!(stored(&none), r#"{"block":{"10.65.3.8/29":1},"deleted":false}"#);
        assert_eq!(record.subtract(cidr("10.0.0.0/29"), 1).map(|change| stored(&change)), None);
        record.written(
            Handle { block: [("10.65.3.8/29".to_owned(), 5)].into(), ..Handle::default() },
            9.into(),
        );
        assert!(matches!(
            record.leave(&["10.65.3.8/29".to_owned()]),
            Some(Change::Delete { revision, .. }) if revision == 9.into()
        ));
    }

    #[test]
    fn there_is_nothing_to_take_from_a_handle_that_is_not_there() {
        let record = HandleRecord::new("net.a", None);
        assert!(record.subtract(cidr("10.0.0.0/29"), 1).is_none() && record.leave(&[]).is_none());
    }
}
