//! A kernel that is a value takes the operations of any history, and ends up with what is wanted.

use super::*;
use crate::nft::table::Point;
use proptest::prelude::*;

/// The kernel's table, with the kernel's rules about what may be done when.
#[derive(Default)]
struct Model {
    there: bool,
    table: Table,
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
                    assert!(self.table.sets.contains_key(set), "a rule looks into {set}, which is not there");
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
                let leads = |element: &Element| element.chain.as_deref() == Some(name);
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
                    let target = element.chain.as_ref();
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

    fn look(&self) -> (Seen, BTreeMap<String, BTreeSet<Element>>) {
        let chains = self.table.chains.iter().map(|(name, chain)| (name.clone(), Print::of(chain)));
        let sets = self.table.sets.iter().map(|(name, set)| (name.clone(), Some(set.kind)));
        let elements = self.table.sets.iter().map(|(name, set)| (name.clone(), set.elements.clone()));
        let seen = Seen { there: self.there, odd: false, chains: chains.collect(), sets: sets.collect() };
        (seen, elements.collect())
    }
}

/// Something that happens.
#[derive(Clone, Debug)]
enum Step {
    /// Workload, and what its chain says.
    Put(u8, u8),
    Drop(u8),
    Member(u8, bool),
    Net(u8, bool),
    /// The kernel is made to have it.
    Commit,
    /// Somebody else was at it: takes a chain's rules away, an element, or all.
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

fn happens(step: &Step, draft: &mut Draft, model: &mut Model) {
    let chain_name = |number: &u8| format!("chain-{number}");
    let leads = |number: &u8| Element { chain: Some(chain_name(number)), ..Element::key(vec![*number]) };
    match step {
        Step::Put(number, what) => {
            let rule = Rule::new(vec![Match::mark(u32::from(*what))], vec![Action::Drop]);
            draft.put_chain(chain_name(number), Chain { hook: None, rules: vec![rule] });
            draft.insert("map", leads(number));
        }
        Step::Drop(number) => {
            draft.remove("map", &leads(number));
            draft.drop_chain(&chain_name(number));
        }
        Step::Member(member, true) => draft.insert("set", Element::key(vec![*member])),
        Step::Member(member, false) => draft.remove("set", &Element::key(vec![*member])),
        Step::Net(net, there) => {
            let element = Element::range(vec![net * 2], vec![net * 2]);
            if *there {
                draft.put_set("nets".into(), SetType::Nets(crate::nft::rule::Family::V4));
                draft.insert("nets", element);
            } else {
                draft.remove("nets", &element);
            }
            // Rules name the set of ranges only while it is there.
            let empty = draft.elements("nets").next().is_none();
            let lookup = |set: &str| Match::lookup([crate::nft::rule::Field::Mark], set);
            let mut matches = vec![lookup("set")];
            if empty {
                draft.drop_set("nets");
            } else {
                matches.push(lookup("nets"));
            }
            let rules = vec![Rule::new(matches, vec![Action::Accept])];
            draft.put_chain("user".into(), Chain { hook: None, rules });
        }
        Step::Commit => commit(draft, model),
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
    // Whatever others did, we hear of it before the next transaction.
    if let Step::Meddle(_) | Step::Look = step {
        let (seen, elements) = model.look();
        draft.look(seen, elements);
    }
}

fn commit(draft: &mut Draft, model: &mut Model) {
    let preparations = draft.preparations();
    if !preparations.is_empty() {
        model.take(&preparations);
        draft.prepared();
    }
    model.take(&draft.operations());
    draft.done();
}

proptest! {
    #[test]
    fn the_kernel_ends_up_with_what_is_wanted(steps in prop::collection::vec(step(), 0..40)) {
        let (mut draft, mut model) = (Draft::new(), Model::default());
        draft.put_set("map".into(), SetType::Chains);
        draft.put_set("set".into(), SetType::Interfaces);
        let hook = Some(Hook { point: Point::Forward, priority: 0 });
        draft.put_chain("entered".into(), Chain { hook, rules: Vec::new() });
        for step in &steps {
            happens(step, &mut draft, &mut model);
        }
        commit(&mut draft, &mut model);
        prop_assert_eq!(&model.table, draft.wanted());
        prop_assert!(draft.operations().is_empty() && draft.preparations().is_empty());
    }
}

#[test]
fn a_set_that_is_wanted_again_before_it_went_has_no_old_members() {
    let (mut draft, mut model) = (Draft::new(), Model::default());
    draft.put_set("set".into(), SetType::Interfaces);
    for step in [Step::Net(1, true), Step::Commit, Step::Net(1, false), Step::Look, Step::Net(0, true)] {
        happens(&step, &mut draft, &mut model);
    }
    commit(&mut draft, &mut model);
    assert_eq!(&model.table, draft.wanted());
}
