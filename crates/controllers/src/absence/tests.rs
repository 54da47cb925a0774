use super::*;
use std::cell::RefCell;

const GRACE: Duration = Duration::from_secs(900);

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn block_on<T>(round: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(round)
}

/// An API server with its objects, and the names of the objects that the guard has read.
#[derive(Default)]
struct AbsenceTestWorld {
    guard: AbsenceGuard,
    existing: BTreeSet<String>,
    is_away: bool,
    unreadable: BTreeSet<String>,
    read: RefCell<Vec<String>>,
    now: MonotonicTime,
}

impl AbsenceTestWorld {
    fn new() -> AbsenceTestWorld {
        let mut world = AbsenceTestWorld::default();
        world.guard.set_leak_grace(Some(GRACE));
        world.guard.mark_synced(MonotonicTime::ZERO);
        world.now = GRACE;
        world
    }

    /// Submits claims on these nodes and returns the admitted names.
    fn admit(&mut self, names: &[&str], referenced: usize) -> Vec<String> {
        self.admit_all(names.iter().map(|name| (*name).to_owned()), referenced).actions
    }

    fn admit_all(
        &mut self,
        names: impl Iterator<Item = String>,
        referenced: usize,
    ) -> ClaimAdmission<String> {
        let claims =
            names.map(|name| AbsenceClaim::if_absent(name.clone(), AbsenceSubject::node(&name))).collect();
        let references = ReferenceCounts::from([(SubjectClass::Nodes, referenced)]);
        let AbsenceTestWorld { guard, existing, is_away, unreadable, read, now } = self;
        block_on(guard.admit("test", claims, &references, *now, async |subject| {
            let AbsenceSubject::Object { key: StoreKey::Resource { name, .. }, .. } = subject else {
                panic!("{subject}")
            };
            read.borrow_mut().push(name.clone());
            if *is_away || unreadable.contains(name) {
                return Err("away");
            }
            Ok(!existing.contains(name))
        }))
    }

    fn reads(&self) -> usize {
        self.read.borrow().len()
    }
}

#[test]
fn an_object_that_exists_is_kept() {
    let mut world = AbsenceTestWorld::new();
    world.existing.insert("b".into());
    assert_eq!(world.admit(&["a", "b", "c"], 10), ["a", "c"]);
    assert_eq!(world.guard.describe_withheld(), None);
    let reads = world.reads();
    assert_eq!(world.admit(&["b"], 10), Vec::<String>::new());
    assert_eq!(world.reads(), reads, "the object is not read again before the recheck delay");
    world.existing.clear();
    world.now += ABSENCE_RECHECK_DELAY;
    assert_eq!(world.admit(&["b"], 10), ["b"]);
    assert_eq!(world.guard.counters(), AbsenceCounters { proofs: 4, contradictions: 1, failures: 0 });
}

#[test]
fn an_error_is_no_absence() {
    let mut world = AbsenceTestWorld::new();
    world.is_away = true;
    let names = ["a", "b", "c", "d"];
    assert_eq!(world.admit(&names, 10), Vec::<String>::new());
    assert_eq!(world.reads(), MAX_FAILURES_PER_ROUND, "the round ends after the maximum number of errors");
    world.is_away = false;
    assert_eq!(world.admit(&names, 10), ["d", "a", "b", "c"], "objects whose read failed come last");
    assert_eq!(world.admit(&names, 10), names);
}

#[test]
fn an_unreadable_object_holds_up_no_other() {
    let mut world = AbsenceTestWorld::new();
    let names = ["a", "b", "c", "d", "e"];
    world.unreadable = ["a", "b", "c", "d"].map(str::to_owned).into();
    assert_eq!(world.admit(&names, 20), Vec::<String>::new());
    assert_eq!(world.admit(&names, 20), ["e"]);
    assert_eq!(world.admit(&names[..4], 20), Vec::<String>::new());
    world.admit(&[], 20);
    assert!(world.guard.failed.is_empty());
}

#[test]
fn a_node_must_be_missing_for_its_grace() {
    let mut world = AbsenceTestWorld::new();
    world.guard.remove_node("a", world.now);
    assert_eq!(world.admit(&["a"], 10), Vec::<String>::new());
    world.now += NODE_GRACE - seconds(1);
    let admission = world.admit_all(["a".to_owned()].into_iter(), 10);
    assert_eq!((admission.actions.len(), admission.retry), (0, Some(world.now + seconds(1))));
    world.guard.put_node("a");
    world.guard.remove_node("a", world.now);
    world.now += seconds(1);
    assert_eq!(
        world.admit(&["a"], 10),
        Vec::<String>::new(),
        "the grace starts again after the node was back"
    );
    assert_eq!(world.reads(), 0);
    world.now += NODE_GRACE;
    world.guard.remove_node("b", world.now);
    assert_eq!(
        world.guard.removed_nodes.len(),
        1,
        "a node that is missing for longer than its grace is forgotten"
    );
    assert_eq!(world.admit(&["a", "b"], 10), ["a"]);
}

#[test]
fn a_node_never_listed_has_its_grace() {
    let mut world = AbsenceTestWorld::new();
    world.guard = AbsenceGuard::default();
    assert_eq!(world.admit(&["a"], 10), Vec::<String>::new(), "lists are not complete yet");
    world.guard.set_leak_grace(Some(seconds(2)));
    world.guard.mark_synced(world.now);
    assert_eq!(world.admit(&["a"], 10), Vec::<String>::new());
    world.now += seconds(2);
    assert_eq!(world.admit(&["a"], 10), ["a"], "a shorter grace period of leaks counts");
}

#[test]
fn a_large_share_is_admitted_as_a_whole() {
    let mut world = AbsenceTestWorld::new();
    let names: Vec<String> = (0..8).map(|number| format!("n{number}")).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    world.existing.insert("n7".into());
    assert_eq!(world.admit(&all, 10), Vec::<String>::new());
    assert_eq!(world.guard.withheld(), 8);
    let report = world.guard.describe_withheld().unwrap();
    assert!(report.starts_with("8 of 10 nodes are missing from lists, 8 actions are withheld: "), "{report}");
    assert!(report.contains("n7"), "{report}");
    let reads = world.reads();
    world.now += ABSENCE_RECHECK_DELAY - seconds(1);
    assert_eq!(world.admit(&all, 10), Vec::<String>::new());
    assert_eq!(world.reads(), reads, "no object is read before the recheck delay");
    world.now += seconds(1);
    world.existing.clear();
    assert_eq!(world.admit(&all, 10), all);
    assert_eq!((world.guard.describe_withheld(), world.guard.withheld()), (None, 0));
    // The objects are back.
    world.existing.insert("n0".into());
    world.admit(&all, 10);
    assert!(world.guard.describe_withheld().is_some());
    assert_eq!(world.admit(&[], 10), Vec::<String>::new());
    assert_eq!(world.guard.describe_withheld(), None);
}

#[test]
fn an_empty_list_is_suspicious_whatever_its_size() {
    let mut world = AbsenceTestWorld::new();
    world.existing.insert("b".into());
    assert_eq!(world.admit(&["a", "b"], 2), Vec::<String>::new());
    assert!(world.guard.describe_withheld().is_some());
    let mut away = AbsenceTestWorld::new();
    away.is_away = true;
    away.admit(&["a"], 1);
    let withheld = away.guard.describe_withheld().unwrap();
    assert!(withheld.contains("cannot determine whether") && withheld.contains("exists: away"), "{withheld}");
}

#[test]
fn a_round_reads_a_bounded_number_of_objects() {
    let mut world = AbsenceTestWorld::new();
    let count = 2 * MAX_PROOFS_PER_ROUND + 1;
    let mut left: BTreeSet<String> = (0..count).map(|number| number.to_string()).collect();
    let mut rounds = 0;
    while !left.is_empty() {
        let admission = world.admit_all(left.clone().into_iter(), count);
        assert!(admission.actions.len() <= MAX_PROOFS_PER_ROUND);
        admission.actions.iter().for_each(|name| _ = left.remove(name));
        rounds += 1;
        let again = (!left.is_empty()).then_some(world.now + PROOF_ROUND_DELAY);
        assert_eq!(admission.retry, again);
        world.now += PROOF_ROUND_DELAY;
    }
    assert_eq!(rounds, 3);
}

#[test]
fn claims_without_an_absence_need_no_proof() {
    let mut world = AbsenceTestWorld::new();
    world.is_away = true;
    let claims = vec![AbsenceClaim::certain("a"), AbsenceClaim::certain("b")];
    let references = ReferenceCounts::new();
    let admitted =
        block_on(world.guard.admit("test", claims, &references, world.now, async |_: &AbsenceSubject| {
            Err::<bool, &str>("away")
        }));
    assert_eq!(admitted.actions, ["a", "b"]);
}
