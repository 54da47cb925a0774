//! The failures that the kernel's rejections cause, with the workloads whose policy is incomplete because of them.

use super::super::blame::{RejectedObject, element_object};
use super::super::diff::{RejectedDefinition, TableDiff};
use super::super::render::{PolicyStage, names};
use super::{DIRECTIONS, PolicyTableState};
use crate::failure::{AffectedWorkloads, KernelFailure};
use std::collections::{BTreeMap, BTreeSet};
use tortie_plan::WorkloadId;

impl PolicyTableState {
    /// Returns the objects that the kernel rejects. Every chain among them is closed.
    pub fn refused(&self) -> Vec<KernelFailure> {
        let mut failures = self.refused_elements(&self.tables.arp);
        failures.extend(self.refused_elements(&self.tables.policy));
        failures.extend(self.refused_objects());
        failures
    }

    fn refused_elements(&self, diff: &TableDiff) -> Vec<KernelFailure> {
        let mut failures = Vec::new();
        for (set, kind, element, reason) in diff.refused_elements() {
            let (object, interface) = element_object(set, kind, element);
            let concerned = interface.iter().flat_map(|interface| self.workloads.claimants(interface));
            let concerns = concerned.cloned().collect();
            failures.push(KernelFailure { object, concerns, reason: reason.clone().into() });
        }
        failures
    }

    fn refused_objects(&self) -> Vec<KernelFailure> {
        let refused = self.tables.policy.refused();
        if refused.is_empty() {
            return Vec::new();
        }
        let mut owners = self.owners(&refused.keys().map(String::as_str).collect());
        let mut failures = Vec::new();
        for (name, RejectedDefinition { object, reason }) in refused {
            let concerns = AffectedWorkloads::Workloads(owners.remove(name.as_str()).unwrap_or_default());
            failures.push(KernelFailure { object: object.clone(), concerns, reason: reason.clone().into() });
        }
        failures
    }

    /// Converts an object that the kernel named into a failure with the workloads that it concerns.
    pub fn failure_of(&self, culprit: &RejectedObject) -> KernelFailure {
        let concerns = match &culprit.interface {
            Some(interface) => self.workloads.claimants(interface).cloned().collect(),
            None => self.owners(&BTreeSet::from([culprit.name.as_str()])).into_values().flatten().collect(),
        };
        KernelFailure { object: culprit.object.clone(), concerns, reason: culprit.reason.clone().into() }
    }

    /// Returns the workloads that use the given chains and sets.
    fn owners<'n>(&self, names: &BTreeSet<&'n str>) -> BTreeMap<&'n str, BTreeSet<WorkloadId>> {
        // A set is used by the workloads whose chains refer to it.
        let mut users: BTreeMap<&str, Vec<&'n str>> = BTreeMap::new();
        for name in names {
            for chain in self.tables.policy.users(name).chain([*name]) {
                users.entry(chain).or_default().push(name);
            }
        }
        let mut owners: BTreeMap<&'n str, BTreeSet<WorkloadId>> =
            names.iter().map(|name| (*name, BTreeSet::new())).collect();
        for (chain, workloads) in self.chain_owners(&users.keys().copied().collect()) {
            for name in users.get(chain.as_str()).into_iter().flatten() {
                owners.entry(name).or_default().extend(workloads.iter().cloned());
            }
        }
        owners
    }

    /// Returns the workloads that each of the given chains belongs to.
    fn chain_owners(&self, wanted: &BTreeSet<&str>) -> Vec<(String, Vec<WorkloadId>)> {
        let lists = self.workloads.list_objects().filter(|(name, _)| wanted.contains(name));
        let mut owners: Vec<_> =
            lists.map(|(name, users)| (name.to_owned(), users.cloned().collect())).collect();
        for direction in DIRECTIONS {
            for (interface, ids) in self.workloads.claims() {
                for chain in [names::workload(interface, direction), names::connections(interface, direction)]
                {
                    if wanted.contains(chain.as_str()) {
                        owners.push((chain, ids.iter().cloned().collect()));
                    }
                }
            }
            for id in self.policies.policies().keys() {
                for stage in [PolicyStage::Normal, PolicyStage::PreDnat, PolicyStage::Untracked] {
                    let chain = names::policy(id, direction, stage);
                    if wanted.contains(chain.as_str()) {
                        owners.push((chain, self.workloads.users_of_policy(id).cloned().collect()));
                    }
                }
            }
            for name in self.policies.profiles().keys() {
                let chain = names::profile(name, direction);
                if wanted.contains(chain.as_str()) {
                    owners.push((chain, self.workloads.users_of_profile(name).cloned().collect()));
                }
            }
        }
        owners
    }
}
