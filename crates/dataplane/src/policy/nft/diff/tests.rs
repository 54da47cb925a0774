//! Property test: an in-memory model of the kernel applies the operations of any history, and ends up with the desired
//! table.

use super::*;
use crate::policy::nft::rule::NftMatch;
use crate::policy::nft::table::{ElementData, HookPoint};
use proptest::prelude::*;

/// Model of the kernel's table, including the constraints that the kernel enforces within a transaction.
#[derive(Default)]
struct KernelTableModel {
    there: bool,
    table: NftTable,
}

/// Returns the chain that an element of a map jumps to.
fn target(element: &NftElement) -> Option<&str> {
    match &element.data {
        ElementData::Goto(chain) | ElementData::Jump(chain) => Some(chain),
        _ => None,
    }
}

impl KernelTableModel {
    fn take(&mut self, operations: &[TableOperation<'_>]) {
        let is_removal = |operation: &TableOperation<'_>| {
            use TableOperation::{DeleteChain, DeleteSet, FlushChain};
            matches!(operation, FlushChain { .. } | DeleteChain { .. } | DeleteSet { .. })
        };
        let started_over =
            operations.iter().any(|operation| matches!(operation, TableOperation::DeleteTable));
        let retires = |operation: &TableOperation<'_>| {
            let TableOperation::DeleteSet { name } = operation else { return false };
            self.table.sets.get(*name).is_some_and(|set| set.kind == SetType::PortChains)
        };
        if operations.iter().any(retires) && !started_over {
            assert!(
                operations.iter().all(is_removal),
                "a map is removed together with changes: {operations:?}"
            );
        }
        for operation in operations {
            self.take_one(operation);
        }
        let chains: BTreeSet<&String> = self.table.chains.keys().collect();
        for rule in self.table.chains.values().flat_map(|chain| &chain.rules) {
            for action in &rule.actions {
                if let NftAction::Jump(to) | NftAction::Goto(to) = action {
                    assert!(chains.contains(to), "a rule leads to {to}, which is not there");
                }
                if let NftAction::Dispatch { map, .. } = action {
                    assert!(self.table.sets.contains_key(map), "a rule reads {map}, which is not there");
                }
            }
            for condition in &rule.matches {
                if let NftMatch::Lookup { set, .. } = condition {
                    assert!(self.table.sets.contains_key(set), "a rule reads into {set}, which is not there");
                }
            }
        }
    }

    fn take_one(&mut self, operation: &TableOperation<'_>) {
        let NftTable { chains, sets } = &mut self.table;
        match operation {
            TableOperation::AddTable => self.there = true,
            TableOperation::DeleteTable => *self = KernelTableModel::default(),
            _ if !self.there => panic!("{operation:?} without a table"),
            TableOperation::AddChain { name, hook } => {
                let old = chains.insert((*name).to_owned(), NftChain { hook: *hook, rules: Vec::new() });
                assert!(old.is_none(), "{name} is there already");
            }
            TableOperation::FlushChain { name } => chains.get_mut(*name).unwrap().rules.clear(),
            TableOperation::DeleteChain { name } => {
                assert!(chains.remove(*name).unwrap().rules.is_empty());
                let leads = |element: &NftElement| target(element) == Some(name);
                assert!(!sets.values().flat_map(|set| &set.elements).any(leads), "{name} is still used");
            }
            TableOperation::AddRule { chain, rule } => {
                chains.get_mut(*chain).unwrap().rules.push((*rule).clone())
            }
            TableOperation::AddSet { name, kind } => {
                let old = sets.insert((*name).to_owned(), NftSet { kind: *kind, elements: BTreeSet::new() });
                assert!(old.is_none(), "{name} is there already");
            }
            TableOperation::DeleteSet { name } => drop(sets.remove(*name).unwrap()),
            TableOperation::AddElements { set, elements, .. } => {
                for element in elements {
                    let target = target(element);
                    assert!(target.is_none_or(|chain| chains.contains_key(chain)));
                    assert!(sets.get_mut(*set).unwrap().elements.insert((*element).clone()));
                }
            }
            TableOperation::DeleteElements { set, elements, .. } => {
                for element in elements {
                    assert!(sets.get_mut(*set).unwrap().elements.remove(*element), "{element:?}");
                }
            }
        }
    }

    fn read(&self) -> (KernelTable, BTreeMap<String, BTreeSet<NftElement>>) {
        let chains =
            self.table.chains.iter().map(|(name, chain)| (name.clone(), ChainFingerprint::new(chain)));
        let sets = self.table.sets.iter().map(|(name, set)| (name.clone(), Some(set.kind)));
        let elements = self.table.sets.iter().map(|(name, set)| (name.clone(), set.elements.clone()));
        let seen =
            KernelTable { there: self.there, odd: false, chains: chains.collect(), sets: sets.collect() };
        (seen, elements.collect())
    }
}

/// A step of a history.
#[derive(Clone, Debug)]
enum HistoryStep {
    /// Adds a workload: its number, and the content of its chain.
    Put(u8, u8),
    Drop(u8),
    Member(u8, bool),
    Net(u8, bool),
    /// Replaces the map to the chains of policies; 3 removes it.
    Ports(u8),
    /// Applies all differences to the model.
    Commit,
    /// Simulates a change by another program: removes the rules of a chain, an element, or everything.
    Meddle(u8),
    Look,
}

fn step() -> impl Strategy<Value = HistoryStep> {
    prop_oneof![
        (0..4u8, 0..3u8).prop_map(|(chain, what)| HistoryStep::Put(chain, what)),
        (0..4u8).prop_map(HistoryStep::Drop),
        (0..6u8, any::<bool>()).prop_map(|(member, there)| HistoryStep::Member(member, there)),
        (0..3u8, any::<bool>()).prop_map(|(net, there)| HistoryStep::Net(net, there)),
        (0..4u8).prop_map(HistoryStep::Ports),
        (0..4u8).prop_map(HistoryStep::Ports),
        Just(HistoryStep::Commit),
        Just(HistoryStep::Commit),
        (0..3u8).prop_map(HistoryStep::Meddle),
        Just(HistoryStep::Look),
    ]
}

fn happens(step: &HistoryStep, diff: &mut TableDiff, model: &mut KernelTableModel) {
    let chain_name = |number: &u8| format!("chain-{number}");
    let leads = |number: &u8| NftElement::goto(vec![*number], &chain_name(number));
    match step {
        HistoryStep::Put(number, what) => {
            let rule = NftRule::new(vec![NftMatch::mark(u32::from(*what))], vec![NftAction::Drop]);
            diff.put_chain(chain_name(number), NftChain { hook: None, rules: vec![rule] });
            diff.insert("map", leads(number));
        }
        HistoryStep::Drop(number) => {
            diff.remove("map", &leads(number));
            diff.drop_chain(&chain_name(number));
        }
        HistoryStep::Member(member, true) => diff.insert("set", NftElement::key(vec![*member])),
        HistoryStep::Member(member, false) => diff.remove("set", &NftElement::key(vec![*member])),
        HistoryStep::Net(net, there) => {
            let element = NftElement::range(vec![net * 2], vec![net * 2]);
            if *there {
                diff.put_set("nets".into(), SetType::Nets(crate::policy::nft::rule::NftFamily::V4));
                diff.insert("nets", element);
            } else {
                diff.remove("nets", &element);
            }
            // Rules refer to the set of ranges only while it exists.
            let empty = !diff.has_elements("nets");
            let lookup = |set: &str| NftMatch::lookup([crate::policy::nft::rule::NftField::Mark], set);
            let mut matches = vec![lookup("set")];
            if empty {
                diff.drop_set("nets");
            } else {
                matches.push(lookup("nets"));
            }
            let rules = vec![NftRule::new(matches, vec![NftAction::Accept])];
            diff.put_chain("user".into(), NftChain { hook: None, rules });
        }
        HistoryStep::Ports(number) => {
            for other in 0..3u8 {
                let (map, policy) = (format!("ports-{other}"), format!("policy-{other}"));
                if other == *number {
                    diff.put_chain(policy.clone(), NftChain::default());
                    diff.put_set(map.clone(), SetType::PortChains);
                    diff.insert(&map, NftElement::jump(vec![other], &policy));
                    let dispatch = NftAction::Dispatch { fields: Vec::new(), map };
                    let rules = vec![NftRule::new(Vec::new(), vec![dispatch])];
                    diff.put_chain("list".into(), NftChain { hook: None, rules });
                } else {
                    diff.drop_set(&map);
                    diff.drop_chain(&policy);
                }
            }
            if *number == 3 {
                diff.drop_chain("list");
            }
        }
        HistoryStep::Commit => commit(diff, model),
        HistoryStep::Meddle(0) => {
            if let Some(chain) = model.table.chains.values_mut().next() {
                chain.rules.clear();
            }
        }
        HistoryStep::Meddle(1) => {
            if let Some(set) = model.table.sets.get_mut("set") {
                set.elements.pop_first();
            }
        }
        HistoryStep::Meddle(_) => *model = KernelTableModel::default(),
        HistoryStep::Look => {}
    }
    // The engine learns of a foreign change before its next transaction.
    if let HistoryStep::Meddle(_) | HistoryStep::Look = step {
        let (seen, elements) = model.read();
        diff.observe(seen, elements);
    }
}

fn commit(diff: &mut TableDiff, model: &mut KernelTableModel) {
    let preparations = diff.preparations();
    if !preparations.is_empty() {
        model.take(&preparations);
        diff.prepared();
    }
    model.take(&diff.operations());
    diff.done();
    model.take(&diff.removals());
    diff.removed();
}

proptest! {
    #[test]
    fn the_kernel_ends_up_with_what_is_wanted(steps in prop::collection::vec(step(), 0..40)) {
        let (mut diff, mut model) = (TableDiff::new(), KernelTableModel::default());
        diff.put_set("map".into(), SetType::Chains);
        diff.put_set("set".into(), SetType::Interfaces);
        let hook = Some(ChainHook::filter(HookPoint::Forward, 0));
        diff.put_chain("entered".into(), NftChain { hook, rules: Vec::new() });
        for step in &steps {
            happens(step, &mut diff, &mut model);
        }
        commit(&mut diff, &mut model);
        prop_assert_eq!(&model.table, diff.wanted());
        prop_assert!(diff.operations().is_empty() && diff.preparations().is_empty());
        prop_assert!(diff.removals().is_empty() && !diff.retires_maps());
    }
}

#[test]
fn replaced_port_maps_outlive_the_change() {
    let (mut diff, mut model) = (TableDiff::new(), KernelTableModel::default());
    for step in [HistoryStep::Ports(0), HistoryStep::Commit, HistoryStep::Ports(1)] {
        happens(&step, &mut diff, &mut model);
    }
    assert!(diff.retires_maps());
    model.take(&diff.operations());
    diff.done();
    let left: Vec<&String> = model.table.sets.keys().collect();
    assert_eq!(left, ["ports-0", "ports-1"], "rules of the previous transaction still find their map");
    assert!(model.table.chains.contains_key("policy-0"));
    // The map is needed again before it was removed.
    happens(&HistoryStep::Ports(0), &mut diff, &mut model);
    commit(&mut diff, &mut model);
    assert_eq!(&model.table, diff.wanted());
}

#[test]
fn recreated_sets_have_no_old_members() {
    let (mut diff, mut model) = (TableDiff::new(), KernelTableModel::default());
    diff.put_set("set".into(), SetType::Interfaces);
    for step in [
        HistoryStep::Net(1, true),
        HistoryStep::Commit,
        HistoryStep::Net(1, false),
        HistoryStep::Look,
        HistoryStep::Net(0, true),
    ] {
        happens(&step, &mut diff, &mut model);
    }
    commit(&mut diff, &mut model);
    assert_eq!(&model.table, diff.wanted());
}

/// One exists for every address of every set, and a second one until it is in the kernel.
#[test]
fn an_element_is_small() {
    assert_eq!(size_of::<NftElement>(), 40);
}
