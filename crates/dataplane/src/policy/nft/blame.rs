//! Maps a rejection by the kernel to the chain, rule, set or element that it is about, and to the workloads whose
//! policy is incomplete because of it.

use super::diff::TableDiff;
use super::kernel::TransactionRejection;
use super::message::TableOperation;
use super::render::{PolicyOrProfile, PolicyStage, names};
use super::state::{DIRECTIONS, PolicyTableState};
use super::table::{ElementData, NftElement, SetType, TableFamily};
use crate::failure::{AffectedWorkloads, KernelFailure, KernelObject};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tortie_plan::WorkloadId;

/// An object that the kernel named when it rejected a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RejectedObject {
    /// Name of the chain or set that it is, or that contains it.
    pub name: String,
    pub object: KernelObject,
    pub reason: String,
    /// The rejected element, if it concerns a single workload.
    pub element: Option<NftElement>,
    /// The interface of that workload.
    pub interface: Option<String>,
}

/// Returns the objects that an operation creates, changes or removes.
pub(super) fn objects(
    operations: &[TableOperation<'_>],
    position: usize,
    family: TableFamily,
) -> Vec<KernelObject> {
    let alone = TransactionRejection {
        operations: vec![(position, String::new())],
        reason: String::new(),
        general: false,
    };
    match operations.get(position) {
        Some(TableOperation::AddTable) => vec![family.object()],
        _ => culprits(operations, &alone).into_iter().map(|culprit| culprit.object).collect(),
    }
}

/// Returns the chains, rules, sets and elements that a rejection is about.
pub(super) fn culprits(
    operations: &[TableOperation<'_>],
    refusal: &TransactionRejection,
) -> Vec<RejectedObject> {
    let mut culprits = Vec::new();
    for (position, reason) in &refusal.operations {
        let Some(operation) = operations.get(*position) else { continue };
        let culprit = |name: &str, object| RejectedObject {
            name: name.to_owned(),
            object,
            reason: reason.clone(),
            element: None,
            interface: None,
        };
        match operation {
            TableOperation::AddTable | TableOperation::DeleteTable => {}
            TableOperation::AddChain { name, .. }
            | TableOperation::FlushChain { name }
            | TableOperation::DeleteChain { name } => {
                culprits.push(culprit(name, KernelObject::Chain { name: (*name).to_owned() }));
            }
            TableOperation::AddRule { chain, .. } => {
                let earlier = operations.iter().take(*position);
                let same = |other: &&TableOperation<'_>| matches!(other, TableOperation::AddRule { chain: of, .. } if of == chain);
                let index = earlier.filter(same).count();
                culprits.push(culprit(chain, KernelObject::Rule { chain: (*chain).to_owned(), index }));
            }
            TableOperation::AddSet { name, .. } | TableOperation::DeleteSet { name } => {
                culprits.push(culprit(name, KernelObject::Set { name: (*name).to_owned() }));
            }
            TableOperation::AddElements { set, kind, elements }
            | TableOperation::DeleteElements { set, kind, elements } => {
                for element in elements {
                    let (object, interface) = element_object(set, *kind, element);
                    let own = interface.is_some().then(|| (*element).clone());
                    culprits.push(RejectedObject { interface, element: own, ..culprit(set, object) });
                }
            }
        }
    }
    culprits
}

/// Returns the object for an element of a set or map, and the interface of the workload that it concerns.
fn element_object(set: &str, kind: SetType, element: &NftElement) -> (KernelObject, Option<String>) {
    let (text, interface) = describe(element, kind);
    let object = match kind {
        kind if kind.is_map() => KernelObject::MapElement { map: set.to_owned(), key: text },
        _ => KernelObject::SetElement { set: set.to_owned(), element: text },
    };
    (object, interface)
}

/// Formats an element as text, and returns the interface that it concerns.
fn describe(element: &NftElement, kind: SetType) -> (String, Option<String>) {
    let address = |bytes: &[u8]| -> String {
        let v4 = <[u8; 4]>::try_from(bytes).map(|bytes| IpAddr::from(Ipv4Addr::from(bytes)));
        let v6 = <[u8; 16]>::try_from(bytes).map(|bytes| IpAddr::from(Ipv6Addr::from(bytes)));
        v4.or(v6).map_or_else(|_| format!("{bytes:02x?}"), |address| address.to_string())
    };
    let interface = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned();
    let range = |first: &[u8], last: Option<&[u8]>| match last {
        Some(last) => format!("{}-{}", address(first), address(last)),
        None => address(first),
    };
    let last = match &element.data {
        ElementData::Last(last) => Some(&**last),
        _ => None,
    };
    match kind {
        SetType::Interfaces | SetType::Chains => {
            let name = interface(&element.key);
            (name.clone(), Some(name))
        }
        SetType::Sources(_) | SetType::SourceNets(_) => {
            let (name, first) = element.key.split_at_checked(16).unwrap_or((&[], &element.key));
            let last = last.and_then(|last| last.get(16..));
            let name = interface(name);
            (format!("{name} . {}", range(first, last)), Some(name))
        }
        SetType::Addresses(_) | SetType::Nets(_) | SetType::Translations(_) => {
            (range(&element.key, last), None)
        }
        SetType::PairTranslations(_) => {
            let half = element.key.len() / 2;
            let (source, destination) = element.key.split_at_checked(half).unwrap_or((&element.key, &[]));
            (format!("{} . {}", address(source), address(destination)), None)
        }
        SetType::Ports(_) => {
            let length = element.key.len().saturating_sub(8);
            let (first, rest) = element.key.split_at_checked(length).unwrap_or((&element.key, &[]));
            let protocol = rest.first().copied().unwrap_or_default();
            let port = rest.get(4..6).map_or(0, |port| u16::from_be_bytes([port[0], port[1]]));
            (format!("{} . {protocol} . {port}", address(first)), None)
        }
    }
}

impl PolicyTableState {
    /// Returns the objects that the kernel rejects. Every chain among them is closed.
    pub fn refused(&self) -> Vec<KernelFailure> {
        let mut failures = self.refused_elements(&self.arp);
        failures.extend(self.refused_elements(&self.diff));
        failures.extend(self.refused_objects());
        failures
    }

    fn refused_elements(&self, diff: &TableDiff) -> Vec<KernelFailure> {
        let failure = |(set, kind, element, reason): (&str, SetType, &NftElement, &str)| {
            let (object, interface) = element_object(set, kind, element);
            let concerned = interface.iter().flat_map(|interface| self.at_interface(interface));
            KernelFailure { object, concerns: concerned.cloned().collect(), reason: reason.to_owned().into() }
        };
        diff.refused_elements().map(failure).collect()
    }

    fn refused_objects(&self) -> Vec<KernelFailure> {
        let refused = self.diff.refused();
        if refused.is_empty() {
            return Vec::new();
        }
        let names = refused.keys().map(String::as_str).collect();
        let mut owners = self.owners(&names);
        let failure = |(name, refused): (&String, &super::diff::RejectedDefinition)| KernelFailure {
            object: refused.object.clone(),
            concerns: AffectedWorkloads::Workloads(owners.remove(name.as_str()).unwrap_or_default()),
            reason: refused.reason.clone().into(),
        };
        refused.iter().map(failure).collect()
    }

    /// Converts an object that the kernel named into a failure with the workloads that it concerns.
    pub fn failure_of(&self, culprit: &RejectedObject) -> KernelFailure {
        let concerned = match &culprit.interface {
            Some(interface) => self.at_interface(interface).cloned().collect(),
            None => self.owners(&BTreeSet::from([culprit.name.as_str()])).into_values().flatten().collect(),
        };
        let (object, reason) = (culprit.object.clone(), culprit.reason.clone().into());
        KernelFailure { object, concerns: AffectedWorkloads::Workloads(concerned), reason }
    }

    /// Returns the workloads that use the given chains and sets.
    fn owners<'n>(&self, names: &BTreeSet<&'n str>) -> BTreeMap<&'n str, BTreeSet<WorkloadId>> {
        // A set is used by the workloads whose chains refer to it.
        let looking: BTreeMap<&'n str, BTreeSet<String>> =
            names.iter().map(|name| (*name, self.diff.users(name).map(str::to_owned).collect())).collect();
        let chains: BTreeSet<&str> =
            names.iter().copied().chain(looking.values().flatten().map(String::as_str)).collect();
        let mut by_chain: BTreeMap<String, BTreeSet<WorkloadId>> = BTreeMap::new();
        let mut note = |chain: String, ids: &mut dyn Iterator<Item = &WorkloadId>| {
            if chains.contains(chain.as_str()) {
                by_chain.entry(chain).or_default().extend(ids.cloned());
            }
        };
        for direction in DIRECTIONS {
            for interface in self.interfaces_of_workloads() {
                for chain in [names::workload(interface, direction), names::connections(interface, direction)]
                {
                    note(chain, &mut self.at_interface(interface));
                }
            }
            for (id, policy) in self.policies() {
                let holder = PolicyOrProfile::Policy { id, tier: &policy.tier };
                for stage in [PolicyStage::Normal, PolicyStage::PreDnat, PolicyStage::Untracked] {
                    note(holder.chain_name(direction, stage), &mut self.with_policy(id));
                }
            }
            for name in self.profiles() {
                let chain = PolicyOrProfile::Profile(name).chain_name(direction, PolicyStage::Normal);
                note(chain, &mut self.with_profile(name));
            }
        }
        let of = |name: &'n str| {
            let looking = looking.get(name).into_iter().flatten().map(String::as_str);
            let chains = looking.chain([name]).filter_map(|chain| by_chain.get(chain));
            (name, chains.flatten().cloned().collect())
        };
        names.iter().map(|name| of(name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::rule::{NftFamily, interface};
    use super::super::table::join;
    use super::*;

    #[test]
    fn elements_are_named_as_people_write_them() {
        let v4 = [10, 0, 0, 1];
        let cases = [
            (NftElement::key(interface("cali1")), SetType::Interfaces, "cali1", Some("cali1")),
            (NftElement::key(v4.to_vec()), SetType::Addresses(NftFamily::V4), "10.0.0.1", None),
            (
                NftElement::key(join(&[&v4, &[6], &443u16.to_be_bytes()])),
                SetType::Ports(NftFamily::V4),
                "10.0.0.1 . 6 . 443",
                None,
            ),
            (
                NftElement::key(join(&[&interface("cali1"), &v4])),
                SetType::Sources(NftFamily::V4),
                "cali1 . 10.0.0.1",
                Some("cali1"),
            ),
            (
                NftElement::range(vec![10, 0, 0, 0], vec![10, 0, 0, 255]),
                SetType::Nets(NftFamily::V4),
                "10.0.0.0-10.0.0.255",
                None,
            ),
        ];
        for (element, kind, text, about) in cases {
            assert_eq!(describe(&element, kind), (text.to_owned(), about.map(str::to_owned)));
        }
    }
}
