//! Computes the next operations for bandwidth limits.

use super::super::DataplaneCore;
use super::desired::{bucket, device_of, is_device};
use crate::kernel::TokenBucket;
use std::collections::{BTreeMap, BTreeSet};

/// A change of traffic control for one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ShapingOperation {
    SetBucket { device: u32, bucket: TokenBucket },
    DeleteBucket { device: u32 },
    CreateDevice { name: String, mtu: u32 },
    SetUp { device: u32 },
    Redirect { device: u32, to: u32 },
    DeleteRedirection { device: u32 },
    DeleteDevice { device: u32 },
}

impl DataplaneCore {
    /// Returns the next operation for each interface, by name; the caller reads the kernel again after each step.
    /// Nothing is removed before the first plan, and nothing from interfaces that are not ours.
    pub fn shaping_work(&self) -> Vec<(String, ShapingOperation)> {
        if !self.shaping.dirty {
            return Vec::new();
        }
        let mut work = Vec::new();
        let mut buckets: BTreeMap<u32, TokenBucket> = BTreeMap::new();
        let (mut devices, mut redirected) = (BTreeSet::new(), BTreeSet::new());
        for (link, workload) in self.shaped() {
            if let Some(bandwidth) = &workload.qos.ingress.bandwidth {
                buckets.insert(link.index, bucket(bandwidth, link.mtu));
            }
            let Some(bandwidth) = &workload.qos.egress.bandwidth else { continue };
            let name = device_of(&link.name);
            redirected.insert(link.index);
            devices.insert(name.clone());
            let there = self.links.named(&name);
            let operation = match there {
                None => Some(ShapingOperation::CreateDevice { name, mtu: link.mtu }),
                Some(device) if !device.enabled => Some(ShapingOperation::SetUp { device: device.index }),
                Some(device) => {
                    let wanted = bucket(bandwidth, link.mtu);
                    buckets.insert(device.index, wanted);
                    // Not before the bucket exists: until then, redirected packets would exceed the limit.
                    let filled = self.has_bucket(device.index, &wanted);
                    let target = self.shaping.there.redirected.get(&link.index);
                    match target {
                        _ if !filled => None,
                        None => Some(ShapingOperation::Redirect { device: link.index, to: device.index }),
                        Some(Some(target)) if *target == device.index => None,
                        // A redirection without a target, or to another device.
                        Some(_) => Some(ShapingOperation::DeleteRedirection { device: link.index }),
                    }
                }
            };
            work.extend(operation.map(|operation| (link.name.clone(), operation)));
        }
        for (device, bucket) in &buckets {
            if !self.has_bucket(*device, bucket) {
                let operation = ShapingOperation::SetBucket { device: *device, bucket: *bucket };
                work.push((self.name(*device), operation));
            }
        }
        if self.in_sync {
            work.extend(self.unwanted_shaping(&buckets, &devices, &redirected));
        }
        work
    }

    fn unwanted_shaping(
        &self,
        buckets: &BTreeMap<u32, TokenBucket>,
        devices: &BTreeSet<String>,
        redirected: &BTreeSet<u32>,
    ) -> Vec<(String, ShapingOperation)> {
        let mut work = Vec::new();
        let ours = |index: &u32| self.links.get(*index).is_some_and(is_device);
        for (device, target) in &self.shaping.there.redirected {
            if !redirected.contains(device) && target.is_some_and(|target| ours(&target)) {
                work.push((self.name(*device), ShapingOperation::DeleteRedirection { device: *device }));
            }
        }
        let gone = |device: &&u32| !buckets.contains_key(device) && !ours(device);
        for device in self.shaping.there.buckets.keys().filter(gone) {
            work.push((self.name(*device), ShapingOperation::DeleteBucket { device: *device }));
        }
        // Not before the last redirection to it is removed.
        let in_use: BTreeSet<u32> = self.shaping.there.redirected.values().copied().flatten().collect();
        for link in self.links.iter().filter(|link| is_device(link)) {
            if !devices.contains(&link.name) && !in_use.contains(&link.index) {
                work.push((link.name.clone(), ShapingOperation::DeleteDevice { device: link.index }));
            }
        }
        work
    }

    /// Records the errors of the last run; the other interfaces are as desired. Failed ones are retried at the next
    /// tick.
    pub fn shaping_done(&mut self, errors: BTreeMap<String, String>) {
        self.shaping.errors = errors;
        self.shaping.dirty = false;
    }

    /// Schedules a check after a change of a workload with a bandwidth limit or of a device for one.
    pub(in crate::reconcile) fn shaping_changed(&mut self) {
        self.shaping.dirty = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{KernelLink, KernelSnapshot, QdiscState};
    use regex::Regex;
    use std::time::Duration;
    use tortie_plan::{BandwidthLimit, DataplaneSettings, NodePlan, PlanUpdate, PlannedWorkload, WorkloadId};

    const CALI: u32 = 3;
    const IFB: u32 = 4;
    const FOREIGN: u32 = 5;

    fn id() -> WorkloadId {
        WorkloadId { orchestrator: "k8s".into(), workload: "shop/web".into(), endpoint: "eth0".into() }
    }

    fn link(index: u32, name: &str, kind: &str) -> KernelLink {
        let kind = Some(kind.to_owned());
        KernelLink { index, name: name.into(), kind, enabled: true, mtu: 1500, ..KernelLink::default() }
    }

    fn workload(egress: bool) -> PlannedWorkload {
        let mut workload = PlannedWorkload { interface: "cali1".into(), ..PlannedWorkload::default() };
        let bandwidth = BandwidthLimit { bits_per_second: 8_000_000, burst_bits: 800_000, peak: None };
        workload.qos.egress.bandwidth = egress.then_some(bandwidth);
        workload
    }

    fn core(links: Vec<KernelLink>, qdiscs: QdiscState) -> DataplaneCore {
        let snapshot = KernelSnapshot { links, qdiscs, ..KernelSnapshot::default() };
        DataplaneCore::new(
            DataplaneSettings::default(),
            Regex::new("^eth").unwrap(),
            1,
            snapshot,
            Duration::ZERO,
        )
    }

    fn operations(core: &DataplaneCore) -> Vec<ShapingOperation> {
        core.shaping_work().into_iter().map(|(_, operation)| operation).collect()
    }

    #[test]
    fn the_bucket_is_there_before_anything_is_led_to_it_and_goes_after() {
        let mut core = core(vec![link(CALI, "cali1", "veth")], QdiscState::default());
        core.replace(NodePlan { workloads: [(id(), workload(true))].into(), ..NodePlan::default() });
        let name = device_of("cali1");
        assert_eq!(operations(&core), [ShapingOperation::CreateDevice { name: name.clone(), mtu: 1500 }]);
        core.link_is(IFB, Some(link(IFB, &name, "ifb")), Duration::ZERO);
        let wanted = bucket(&workload(true).qos.egress.bandwidth.unwrap(), 1500);
        assert_eq!(operations(&core), [ShapingOperation::SetBucket { device: IFB, bucket: wanted }]);
        let mut qdiscs = QdiscState { buckets: [(IFB, wanted)].into(), ..QdiscState::default() };
        core.qdiscs_are(qdiscs.clone());
        assert_eq!(operations(&core), [ShapingOperation::Redirect { device: CALI, to: IFB }]);
        qdiscs.redirected.insert(CALI, Some(IFB));
        core.qdiscs_are(qdiscs.clone());
        assert_eq!(operations(&core), []);

        core.apply(PlanUpdate::Workload(id(), Some(workload(false))));
        assert_eq!(operations(&core), [ShapingOperation::DeleteRedirection { device: CALI }]);
        qdiscs.redirected.clear();
        core.qdiscs_are(qdiscs);
        assert_eq!(operations(&core), [ShapingOperation::DeleteDevice { device: IFB }]);
    }

    /// For example those of the CNI plugin `bandwidth`, which has its own devices.
    #[test]
    fn what_others_do_to_arriving_packets_stays_and_nothing_goes_before_the_first_plan() {
        let links = vec![
            link(CALI, "cali1", "veth"),
            link(FOREIGN, "bwp123", "ifb"),
            link(IFB, &device_of("cali9"), "ifb"),
        ];
        let qdiscs = QdiscState { redirected: [(CALI, Some(FOREIGN))].into(), ..QdiscState::default() };
        let mut core = core(links, qdiscs);
        assert_eq!(operations(&core), []);
        core.replace(NodePlan { workloads: [(id(), workload(false))].into(), ..NodePlan::default() });
        assert_eq!(
            operations(&core),
            [ShapingOperation::DeleteDevice { device: IFB }],
            "one of a former run"
        );
    }
}
