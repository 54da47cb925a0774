//! Addresses that this node answers for where somebody on its own link asks who has them: those of its workloads that
//! are of a pool without encapsulation. A pool with encapsulation is a network of its own, which no link knows.

use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tortie_model::kinds::{EncapMode, IPPool};
use tortie_plan::Update;

#[derive(Debug, Default)]
pub(crate) struct Proxied {
    enabled: bool,
    /// The pools whose addresses count.
    pools: BTreeMap<String, IpNet>,
    stale: bool,
    in_plan: BTreeSet<IpAddr>,
}

impl Proxied {
    pub fn configure(&mut self, enabled: bool) {
        self.stale |= self.enabled != enabled;
        self.enabled = enabled;
    }

    pub fn put_pool(&mut self, pool: &IPPool) {
        let name = &pool.metadata.name;
        let wraps = |mode: &EncapMode| matches!(mode, EncapMode::Always | EncapMode::CrossSubnet);
        let wrapped = wraps(&pool.spec.vxlan_mode) || wraps(&pool.spec.ipip_mode);
        let cidr = pool.spec.cidr.parse::<IpNet>().ok().filter(|_| !wrapped);
        let before = match cidr {
            Some(cidr) => self.pools.insert(name.clone(), cidr),
            None => self.pools.remove(name),
        };
        self.stale |= before != cidr;
    }

    pub fn remove_pool(&mut self, name: &str) {
        self.stale |= self.pools.remove(name).is_some();
    }

    /// What changed since the last time. `changed`: the workloads have other addresses than then.
    pub fn flush(&mut self, changed: bool, workloads: impl Iterator<Item = IpAddr>) -> Option<Update> {
        if !(std::mem::take(&mut self.stale) || changed && self.enabled) {
            return None;
        }
        let eligible = |address: &IpAddr| self.pools.values().any(|cidr| cidr.contains(address));
        let wanted: BTreeSet<IpAddr> =
            workloads.filter(|address| self.enabled && eligible(address)).collect();
        (wanted != self.in_plan).then(|| {
            self.in_plan.clone_from(&wanted);
            Update::Proxied(wanted)
        })
    }
}
