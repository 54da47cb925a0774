use super::*;
use std::collections::BTreeMap;
use std::sync::Mutex;
use tortie_model::ipam::Handle;

fn key(id: &str) -> Key {
    Key::Handle { id: id.to_owned() }
}

fn value(count: i64) -> Value {
    Value::Handle(Handle { block: [("10.0.0.0/26".to_owned(), count)].into(), ..Handle::default() })
}

fn at(revision: u32) -> Revision {
    u64::from(revision).into()
}

/// A fake store in memory, with a count of the writes.
#[derive(Default)]
struct Memory {
    entries: Mutex<BTreeMap<Key, (Value, u32)>>,
    writes: Mutex<u32>,
}

impl Memory {
    fn with(entries: &[(&str, i64, u32)]) -> Memory {
        let memory = Memory::default();
        for (id, count, revision) in entries {
            memory.entries.lock().unwrap().insert(key(id), (value(*count), *revision));
        }
        memory
    }

    fn stored(&self, id: &str) -> Option<Value> {
        self.entries.lock().unwrap().get(&key(id)).map(|(value, _)| value.clone())
    }
}

impl CompareAndSwap for Memory {
    async fn write(&self, change: &Change) -> Result<Revision> {
        let mut entries = self.entries.lock().unwrap();
        let mut writes = self.writes.lock().unwrap();
        let id = change.key().to_string();
        let stands = entries.get(change.key()).map(|(_, revision)| at(*revision));
        let (expected, value) = match change {
            Change::Create { value, .. } => (None, Some(value)),
            Change::Update { value, revision, .. } => (Some(revision.clone()), Some(value)),
            Change::Delete { revision, .. } | Change::Keep { revision, .. } => (Some(revision.clone()), None),
        };
        if stands != expected {
            return Err(Error::Conflict { id, current: None });
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
fn operation() -> Operation {
    Operation {
        prepare: vec![
            Reversible::create(key("a"), value(1)),
            Reversible::update(key("c"), value(7), value(8), at(3)),
        ],
        commit: vec![Step::Create { key: key("b"), value: value(2) }],
        finish: vec![
            Step::Update { key: key("a"), value: value(3), expected: Expected::Written },
            Step::Delete { key: key("c"), expected: Expected::Written },
        ],
        ..Operation::default()
    }
}

#[tokio::test]
async fn steps_build_on_each_other() {
    let memory = Memory::with(&[("c", 7, 3)]);
    let Outcome::Done(written) = one_by_one(&memory, &operation()).await.unwrap() else { panic!("refused") };
    assert_eq!(memory.stored("a"), Some(value(3)));
    assert_eq!(memory.stored("b"), Some(value(2)));
    assert_eq!(memory.stored("c"), None);
    assert_eq!(written.revision(&key("a")), Some(at(104)));
    assert!(written.unfinished().is_empty());
}

#[tokio::test]
async fn a_refused_commit_undoes_what_was_prepared() {
    let memory = Memory::with(&[("b", 9, 2), ("c", 7, 3)]);
    let outcome = one_by_one(&memory, &operation()).await.unwrap();
    assert_eq!(outcome, Outcome::Refused(key("b").into()));
    assert_eq!(memory.stored("a"), None);
    assert_eq!(memory.stored("b"), Some(value(9)));
    assert_eq!(memory.stored("c"), Some(value(7)));
}

#[tokio::test]
async fn what_cannot_be_finished_is_named() {
    let memory = Memory::with(&[("c", 7, 3)]);
    let mut operation = operation();
    operation.finish.insert(0, Step::Delete { key: key("elsewhere"), expected: Expected::At(at(1)) });
    let Outcome::Done(written) = one_by_one(&memory, &operation).await.unwrap() else { panic!("refused") };
    assert_eq!(written.unfinished(), [key("elsewhere")]);
    assert_eq!(memory.stored("a"), Some(value(3)));
}

#[test]
fn a_transaction_writes_each_entry_once() {
    let mut operation = operation();
    operation.checks = vec![(key("d"), at(5)), (key("c"), at(3))];
    let changes = operation.fold();
    let [a, c, b, d] = changes.as_slice() else { panic!("{changes:?}") };
    assert!(matches!(a, Change::Create { value: written, .. } if *written == value(3)), "{a:?}");
    assert!(matches!(c, Change::Delete { revision, .. } if *revision == at(3)), "{c:?}");
    assert!(matches!(b, Change::Create { value: written, .. } if *written == value(2)), "{b:?}");
    assert!(matches!(d, Change::Keep { revision, .. } if *revision == at(5)), "{d:?}");
}
