//! How packets between the nodes of the cluster are wrapped, by what the pools ask for.

use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use tortie_model::kinds::{AllowedUse, EncapMode, IPPool};
use tortie_plan::{Encapsulation, Update};

/// Said by a setting, whatever the pools ask for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct EncapsulationPolicy {
    pub ipip: Option<bool>,
    pub vxlan: Option<bool>,
}

#[derive(Debug, Default)]
pub(crate) struct Encapsulations {
    policy: EncapsulationPolicy,
    by_pool: BTreeMap<String, Encapsulation>,
    in_plan: BTreeSet<Encapsulation>,
}

impl Encapsulations {
    pub fn set_policy(&mut self, policy: EncapsulationPolicy) {
        self.policy = policy;
    }

    /// A pool that asks for both is one of VXLAN.
    pub fn put_pool(&mut self, pool: &IPPool) {
        let is_on = |mode: &EncapMode| matches!(mode, EncapMode::Always | EncapMode::CrossSubnet);
        let v4 = pool.spec.cidr.parse::<IpNet>().is_ok_and(|cidr| cidr.addr().is_ipv4());
        let encapsulation = match (is_on(&pool.spec.vxlan_mode), is_on(&pool.spec.ipip_mode), v4) {
            (true, _, true) => Some(Encapsulation::Vxlan),
            (true, _, false) => Some(Encapsulation::VxlanV6),
            (false, true, true) => Some(Encapsulation::Ipip),
            _ => None,
        };
        let name = &pool.metadata.name;
        match encapsulation.filter(|_| pool.spec.allowed_uses != [AllowedUse::LoadBalancer]) {
            Some(encapsulation) => self.by_pool.insert(name.clone(), encapsulation),
            None => self.by_pool.remove(name),
        };
    }

    pub fn remove_pool(&mut self, name: &str) {
        self.by_pool.remove(name);
    }

    fn wanted(&self) -> BTreeSet<Encapsulation> {
        let mut wanted: BTreeSet<Encapsulation> = self.by_pool.values().copied().collect();
        let mut say = |said: Option<bool>, by_default, all: &[Encapsulation]| match said {
            Some(true) => drop(wanted.insert(by_default)),
            Some(false) => wanted.retain(|encapsulation| !all.contains(encapsulation)),
            None => {}
        };
        say(self.policy.ipip, Encapsulation::Ipip, &[Encapsulation::Ipip]);
        say(self.policy.vxlan, Encapsulation::Vxlan, &[Encapsulation::Vxlan, Encapsulation::VxlanV6]);
        wanted
    }

    pub fn flush(&mut self) -> Option<Update> {
        let wanted = self.wanted();
        (wanted != self.in_plan).then(|| {
            self.in_plan.clone_from(&wanted);
            Update::Encapsulations(wanted)
        })
    }
}
