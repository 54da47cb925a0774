//! Property test: an in-memory model of the kernel applies the operations of any history, and ends up with the desired
//! table.

use super::*;
use crate::policy::nft::table::{ElementData, Point};
use proptest::prelude::*;

/// Model of the kernel's table, including the constraints that the kernel enforces within a transaction.
#[derive(Default)]
struct Model {
    there: bool,
    table: Table,
}

/// Returns the chain that an element of a map jumps to.
fn target(element: &Element) -> Option<&str> {
    match &element.data {
        ElementData::Goto(chain) => Some(chain),
        _ => None,
    }
}

impl Model {
    fn take(&mut self, operations: &[Operation<'_>]) {
        for operation in operations {
            self.take_one(operation);
        }
        let chains: BTreeSet<&String> = self.table.chains.keys().collect();
        for rule in self.table.chains.values().flat_map(|chain| &chain.rules) {
            for action in &rule.actions {
                if let Action::Jump(to) | Action::Goto(to) = action {
                    assert!(chains.contains(to), "a rule leads to {to}, which is not there");
                }
            }
            for condition in &rule.matches {
                if let Match::Lookup { set, .. } = condition {
                    assert!(self.table.sets.contains_key(set), "a rule reads into {set}, which is not there");
                }
            }
        }
    }

    fn take_one(&mut self, operation: &Operation<'_>) {
        let Table { chains, sets } = &mut self.table;
        match operation {
            Operation::AddTable => self.there = true,
            Operation::DeleteTable => *self = Model::default(),
            _ if !self.there => panic!("{operation:?} without a table"),
            Operation::AddChain { name, hook } => {
                let old = chains.insert((*name).to_owned(), Chain { hook: *hook, rules: Vec::new() });
                assert!(old.is_none(), "{name} is there already");
            }
            Operation::FlushChain { name } => chains.get_mut(*name).unwrap().rules.clear(),
            Operation::DeleteChain { name } => {
                assert!(chains.remove(*name).unwrap().rules.is_empty());
                let leads = |element: &Element| target(element) == Some(name);
                assert!(!sets.values().flat_map(|set| &set.elements).any(leads), "{name} is still used");
            }
            Operation::AddRule { chain, rule } => chains.get_mut(*chain).unwrap().rules.push((*rule).clone()),
            Operation::AddSet { name, kind } => {
                let old = sets.insert((*name).to_owned(), Set { kind: *kind, elements: BTreeSet::new() });
                assert!(old.is_none(), "{name} is there already");
            }
            Operation::DeleteSet { name } => drop(sets.remove(*name).unwrap()),
            Operation::AddElements { set, elements, .. } => {
                for element in elements {
                    let target = target(element);
                    assert!(target.is_none_or(|chain| chains.contains_key(chain)));
                    assert!(sets.get_mut(*set).unwrap().elements.insert((*element).clone()));
                }
            }
            Operation::DeleteElements { set, elements, .. } => {
                for element in elements {
                    assert!(sets.get_mut(*set).unwrap().elements.remove(*element), "{element:?}");
                }
            }
        }
    }

    fn read(&self) -> (KernelTable, BTreeMap<String, BTreeSet<Element>>) {
        let chains =
            self.table.chains.iter().map(|(name, chain)| (name.clone(), ChainFingerprint::of(chain)));
        let sets = self.table.sets.iter().map(|(name, set)| (name.clone(), Some(set.kind)));
        let elements = self.table.sets.iter().map(|(name, set)| (name.clone(), set.elements.clone()));
        let seen =
            KernelTable { there: self.there, odd: false, chains: chains.collect(), sets: sets.collect() };
        (seen, elements.collect())
    }
}

/// A step of a history.
#[derive(Clone, Debug)]
enum Step {
    /// Adds a workload: its number, and the content of its chain.
    Put(u8, u8),
    Drop(u8),
    Member(u8, bool),
    Net(u8, bool),
    /// Applies all differences to the model.
    Commit,
    /// Simulates a change by another program: removes the rules of a chain, an element, or everything.
    Meddle(u8),
    Look,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..4u8, 0..3u8).prop_map(|(chain, what)| Step::Put(chain, what)),
        (0..4u8).prop_map(Step::Drop),
        (0..6u8, any::<bool>()).prop_map(|(member, there)| Step::Member(member, there)),
        (0..3u8, any::<bool>()).prop_map(|(net, there)| Step::Net(net, there)),
        Just(Step::Commit),
        Just(Step::Commit),
        (0..3u8).prop_map(Step::Meddle),
        Just(Step::Look),
    ]
}

fn happens(step: &Step, diff: &mut TableDiff, model: &mut Model) {
    let chain_name = |number: &u8| format!("chain-{number}");
    let leads = |number: &u8| Element::goto(vec![*number], &chain_name(number));
    match step {
        Step::Put(number, what) => {
            let rule = Rule::new(vec![Match::mark(u32::from(*what))], vec![Action::Drop]);
            diff.put_chain(chain_name(number), Chain { hook: None, rules: vec![rule] });
            diff.insert("map", leads(number));
        }
        Step::Drop(number) => {
            diff.remove("map", &leads(number));
            diff.drop_chain(&chain_name(number));
        }
        Step::Member(member, true) => diff.insert("set", Element::key(vec![*member])),
        Step::Member(member, false) => diff.remove("set", &Element::key(vec![*member])),
        Step::Net(net, there) => {
            let element = Element::range(vec![net * 2], vec![net * 2]);
            if *there {
                diff.put_set("nets".into(), SetType::Nets(crate::policy::nft::rule::Family::V4));
                diff.insert("nets", element);
            } else {
                diff.remove("nets", &element);
            }
            // Rules refer to the set of ranges only while it exists.
            let empty = diff.elements("nets").next().is_none();
            let lookup = |set: &str| Match::lookup([crate::policy::nft::rule::Field::Mark], set);
            let mut matches = vec![lookup("set")];
            if empty {
                diff.drop_set("nets");
            } else {
                matches.push(lookup("nets"));
            }
            let rules = vec![Rule::new(matches, vec![Action::Accept])];
            diff.put_chain("user".into(), Chain { hook: None, rules });
        }
        Step::Commit => commit(diff, model),
        Step::Meddle(0) => {
            if let Some(chain) = model.table.chains.values_mut().next() {
                chain.rules.clear();
            }
        }
        Step::Meddle(1) => {
            if let Some(set) = model.table.sets.get_mut("set") {
                set.elements.pop_first();
            }
        }
        Step::Meddle(_) => *model = Model::default(),
        Step::Look => {}
    }
    // The engine learns of a foreign change before its next transaction.
    if let Step::Meddle(_) | Step::Look = step {
        let (seen, elements) = model.read();
        diff.observe(seen, elements);
    }
}

fn commit(diff: &mut TableDiff, model: &mut Model) {
    let preparations = diff.preparations();
    if !preparations.is_empty() {
        model.take(&preparations);
        diff.prepared();
    }
    model.take(&diff.operations());
    diff.done();
}

proptest! {
    #[test]
    fn the_kernel_ends_up_with_what_is_wanted(steps in prop::collection::vec(step(), 0..40)) {
        let (mut diff, mut model) = (TableDiff::new(), Model::default());
        diff.put_set("map".into(), SetType::Chains);
        diff.put_set("set".into(), SetType::Interfaces);
        let hook = Some(Hook::filter(Point::Forward, 0));
        diff.put_chain("entered".into(), Chain { hook, rules: Vec::new() });
        for step in &steps {
            happens(step, &mut diff, &mut model);
        }
        commit(&mut diff, &mut model);
        prop_assert_eq!(&model.table, diff.wanted());
        prop_assert!(diff.operations().is_empty() && diff.preparations().is_empty());
    }
}

#[test]
fn a_set_that_is_wanted_again_before_it_went_has_no_old_members() {
    let (mut diff, mut model) = (TableDiff::new(), Model::default());
    diff.put_set("set".into(), SetType::Interfaces);
    for step in [Step::Net(1, true), Step::Commit, Step::Net(1, false), Step::Look, Step::Net(0, true)] {
        happens(&step, &mut diff, &mut model);
    }
    commit(&mut diff, &mut model);
    assert_eq!(&model.table, diff.wanted());
}

/// One exists for every address of every set, and a second one until it is in the kernel.
#[test]
fn an_element_is_small() {
    assert_eq!(size_of::<Element>(), 40);
}
