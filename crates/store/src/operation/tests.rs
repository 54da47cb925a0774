use super::*;
use std::collections::BTreeMap;
use std::sync::Mutex;
use tortie_model::ipam::AddressHandle;

fn key(id: &str) -> StoreKey {
    StoreKey::Handle { id: id.to_owned() }
}

fn value(count: i64) -> StoreValue {
    StoreValue::Handle(AddressHandle {
        block: [("10.0.0.0/26".to_owned(), count)].into(),
        ..AddressHandle::default()
    })
}

fn at(revision: u32) -> Revision {
    u64::from(revision).into()
}

/// A fake store in memory, with a count of the writes.
#[derive(Default)]
struct MemoryStore {
    entries: Mutex<BTreeMap<StoreKey, (StoreValue, u32)>>,
    writes: Mutex<u32>,
}

impl MemoryStore {
    fn with(entries: &[(&str, i64, u32)]) -> MemoryStore {
        let memory = MemoryStore::default();
        for (id, count, revision) in entries {
            memory.entries.lock().unwrap().insert(key(id), (value(*count), *revision));
        }
        memory
    }

    fn stored(&self, id: &str) -> Option<StoreValue> {
        self.entries.lock().unwrap().get(&key(id)).map(|(value, _)| value.clone())
    }
}

impl CompareAndSwap for MemoryStore {
    async fn write(&self, change: &EntryChange) -> StoreResult<Revision> {
        let mut entries = self.entries.lock().unwrap();
        let mut writes = self.writes.lock().unwrap();
        let id = change.key().to_string();
        let stands = entries.get(change.key()).map(|(_, revision)| at(*revision));
        let (expected, value) = match change {
            EntryChange::Create { value, .. } => (None, Some(value)),
            EntryChange::Update { value, revision, .. } => (Some(revision.clone()), Some(value)),
            EntryChange::Delete { revision, .. } | EntryChange::Keep { revision, .. } => {
                (Some(revision.clone()), None)
            }
        };
        if stands != expected {
            return Err(StoreError::Conflict { id, current: None });
        }
        *writes += 1;
        let revision = 100 + *writes;
        match value {
            Some(value) => entries.insert(change.key().clone(), (value.clone(), revision)),
            None => entries.remove(change.key()),
        };
        Ok(at(revision))
    }
}

/// Returns an operation that prepares `a` and `c`, commits `b`, then confirms `a` and deletes `c`.
fn operation() -> StoreOperation {
    StoreOperation {
        prepare: vec![
            ReversibleStep::create(key("a"), value(1)),
            ReversibleStep::update(key("c"), value(7), value(8), at(3)),
        ],
        commit: vec![OperationStep::Create { key: key("b"), value: value(2) }],
        finish: vec![
            OperationStep::Update { key: key("a"), value: value(3), expected: ExpectedRevision::Written },
            OperationStep::Delete { key: key("c"), expected: ExpectedRevision::Written },
        ],
        ..StoreOperation::default()
    }
}

#[tokio::test]
async fn steps_build_on_each_other() {
    let memory = MemoryStore::with(&[("c", 7, 3)]);
    let OperationOutcome::Done(written) = one_by_one(&memory, &operation()).await.unwrap() else {
        panic!("refused")
    };
    assert_eq!(memory.stored("a"), Some(value(3)));
    assert_eq!(memory.stored("b"), Some(value(2)));
    assert_eq!(memory.stored("c"), None);
    assert_eq!(written.revision(&key("a")), Some(at(104)));
    assert!(written.unfinished().is_empty());
}

#[tokio::test]
async fn a_refused_commit_undoes_what_was_prepared() {
    let memory = MemoryStore::with(&[("b", 9, 2), ("c", 7, 3)]);
    let outcome = one_by_one(&memory, &operation()).await.unwrap();
    assert_eq!(outcome, OperationOutcome::Refused(key("b").into()));
    assert_eq!(memory.stored("a"), None);
    assert_eq!(memory.stored("b"), Some(value(9)));
    assert_eq!(memory.stored("c"), Some(value(7)));
}

#[tokio::test]
async fn what_cannot_be_finished_is_named() {
    let memory = MemoryStore::with(&[("c", 7, 3)]);
    let mut operation = operation();
    operation
        .finish
        .insert(0, OperationStep::Delete { key: key("elsewhere"), expected: ExpectedRevision::At(at(1)) });
    let OperationOutcome::Done(written) = one_by_one(&memory, &operation).await.unwrap() else {
        panic!("refused")
    };
    assert_eq!(written.unfinished(), [key("elsewhere")]);
    assert_eq!(memory.stored("a"), Some(value(3)));
}

#[test]
fn a_transaction_writes_each_entry_once() {
    let mut operation = operation();
    operation.checks = vec![(key("d"), at(5)), (key("c"), at(3))];
    let changes = operation.fold();
    let [a, c, b, d] = changes.as_slice() else { panic!("{changes:?}") };
    assert!(matches!(a, EntryChange::Create { value: written, .. } if *written == value(3)), "{a:?}");
    assert!(matches!(c, EntryChange::Delete { revision, .. } if *revision == at(3)), "{c:?}");
    assert!(matches!(b, EntryChange::Create { value: written, .. } if *written == value(2)), "{b:?}");
    assert!(matches!(d, EntryChange::Keep { revision, .. } if *revision == at(5)), "{d:?}");
}
