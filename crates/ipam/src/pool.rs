//! IP pools in the form that the allocator uses, and the selection of pools for a request.

use crate::{IpamError, IpamResult, space};
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use tortie_model::kinds::{AssignmentMode, EncapMode, IPPool};
use tortie_model::scalar::StringEnum;
use tortie_model::selector::Selector;

/// Intended use of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressUse {
    Workload,
    Tunnel,
    LoadBalancer,
}

/// An IPPool with a valid CIDR and block size.
#[derive(Clone, Debug, PartialEq)]
pub struct AllocationPool {
    pub name: String,
    pub cidr: IpNet,
    /// Prefix length of the blocks.
    pub block_prefix: u8,
    /// Not disabled, not being deleted, and not marked unallocatable in its status.
    pub enabled: bool,
    /// Assignment mode is automatic: the pool may be used without being requested explicitly.
    pub automatic: bool,
    /// `None` if the selector is invalid; such a pool selects nothing.
    pub node_selector: Option<Selector>,
    pub namespace_selector: Option<Selector>,
    pub uses: Vec<AddressUse>,
    /// IPIP encapsulation is in use, always or across subnets.
    pub ipip: bool,
    pub vxlan: bool,
}

/// Criteria that select the pools for a request.
#[derive(Clone, Copy, Debug)]
pub struct PoolCriteria<'a> {
    pub version: u8,
    pub node: &'a str,
    pub node_labels: &'a BTreeMap<String, String>,
    pub namespace_labels: &'a BTreeMap<String, String>,
    /// Pools requested explicitly; empty for any.
    pub requested: &'a [IpNet],
    pub intended: AddressUse,
    /// Maximum prefix length of blocks, that is, their minimum size.
    pub longest_prefix: u8,
}

impl AddressUse {
    const ALL_USES: [AddressUse; 3] = [AddressUse::Workload, AddressUse::Tunnel, AddressUse::LoadBalancer];

    pub const fn as_str(self) -> &'static str {
        match self {
            AddressUse::Workload => "Workload",
            AddressUse::Tunnel => "Tunnel",
            AddressUse::LoadBalancer => "LoadBalancer",
        }
    }
}

impl fmt::Display for AddressUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl AllocationPool {
    /// Converts an IPPool; `None` if the CIDR or the block size is invalid.
    pub fn of(pool: &IPPool) -> Option<AllocationPool> {
        let spec = &pool.spec;
        let cidr: IpNet = spec.cidr.parse().ok()?;
        let longest = cidr.max_prefix_len();
        let block_prefix =
            if spec.block_size == 0 { longest - 6 } else { u8::try_from(spec.block_size).ok()? };
        if !(longest - 12..=longest).contains(&block_prefix) {
            return None;
        }
        let refused = pool
            .status
            .conditions
            .iter()
            .any(|condition| condition.r#type == "Allocatable" && condition.status == "False");
        let uses = if spec.allowed_uses.is_empty() {
            vec![AddressUse::Workload, AddressUse::Tunnel]
        } else {
            AddressUse::ALL_USES
                .into_iter()
                .filter(|known| spec.allowed_uses.iter().any(|word| word.as_str() == known.as_str()))
                .collect()
        };
        Some(AllocationPool {
            name: pool.metadata.name.clone(),
            cidr: cidr.trunc(),
            block_prefix,
            enabled: !spec.disabled && pool.metadata.deletion_timestamp.is_none() && !refused,
            automatic: spec.assignment_mode != AssignmentMode::Manual,
            node_selector: Selector::parse(&spec.node_selector).ok(),
            namespace_selector: Selector::parse(&spec.namespace_selector).ok(),
            uses,
            ipip: encapsulates(&spec.ipip_mode),
            vxlan: encapsulates(&spec.vxlan_mode),
        })
    }

    pub fn version(&self) -> u8 {
        space::version(&self.cidr)
    }

    pub fn selects_node(&self, labels: &BTreeMap<String, String>) -> bool {
        self.node_selector.as_ref().is_some_and(|selector| selector.matches(labels))
    }

    fn selects_namespace(&self, labels: &BTreeMap<String, String>) -> bool {
        self.namespace_selector.as_ref().is_some_and(|selector| selector.matches(labels))
    }

    /// Returns the block that contains an address of the pool.
    pub fn block_of(&self, address: IpAddr) -> Option<IpNet> {
        self.cidr.contains(&address).then(|| space::block_of(address, self.block_prefix)).flatten()
    }

    pub fn block_count(&self) -> u128 {
        space::block_count(&self.cidr, self.block_prefix)
    }
}

fn encapsulates(mode: &EncapMode) -> bool {
    matches!(mode, EncapMode::Always | EncapMode::CrossSubnet)
}

/// Returns the pool that contains an address; with `only_enabled`, disabled pools are ignored.
pub fn containing(pools: &[AllocationPool], address: IpAddr, only_enabled: bool) -> Option<&AllocationPool> {
    pools.iter().find(|pool| pool.cidr.contains(&address) && (pool.enabled || !only_enabled))
}

/// Returns the pools that an automatic assignment may use, in the order in which they are tried.
pub fn select<'a>(
    pools: &'a [AllocationPool],
    choice: &PoolCriteria<'_>,
) -> IpamResult<Vec<&'a AllocationPool>> {
    let enabled: Vec<&AllocationPool> =
        pools.iter().filter(|pool| pool.enabled && pool.version() == choice.version).collect();
    if !enabled.iter().any(|pool| pool.block_prefix <= choice.longest_prefix) {
        return Err(IpamError::NoEnabledPool { version: choice.version });
    }
    let candidates: Vec<&AllocationPool> = if choice.requested.is_empty() {
        enabled
            .into_iter()
            .filter(|pool| {
                pool.automatic
                    && pool.selects_node(choice.node_labels)
                    && pool.selects_namespace(choice.namespace_labels)
            })
            .collect()
    } else {
        let mut found = Vec::new();
        for cidr in choice.requested {
            let pool = enabled.iter().find(|pool| pool.cidr == *cidr);
            found.push(*pool.ok_or(IpamError::UnknownPool { cidr: *cidr })?);
        }
        found
    };
    if candidates.is_empty() {
        return Err(IpamError::NoPoolForNode { node: choice.node.to_owned() });
    }
    let usable: Vec<&AllocationPool> =
        candidates.into_iter().filter(|pool| pool.uses.contains(&choice.intended)).collect();
    if usable.is_empty() {
        return Err(IpamError::NoPoolForUse { version: choice.version, intended: choice.intended });
    }
    Ok(usable)
}

/// Builds a pool from JSON, for tests.
#[cfg(test)]
pub(crate) fn from_json(object: serde_json::Value) -> Option<AllocationPool> {
    let pool = tortie_model::Resource::from_store(tortie_model::Kind::IPPool, object).unwrap();
    AllocationPool::of(&IPPool::try_from(pool).unwrap())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pool(name: &str, spec: Value) -> AllocationPool {
        from_json(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
    }

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn names(
        pools: &[AllocationPool],
        choice: &PoolCriteria<'_>,
    ) -> std::result::Result<Vec<String>, String> {
        select(pools, choice)
            .map(|found| found.iter().map(|pool| pool.name.clone()).collect())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_left_out_has_its_usual_meaning() {
        let v4 = pool("v4", json!({"cidr": "10.0.0.0/16"}));
        assert_eq!((v4.block_prefix, v4.enabled, v4.automatic), (26, true, true));
        assert_eq!(v4.uses, [AddressUse::Workload, AddressUse::Tunnel]);
        assert_eq!(pool("v6", json!({"cidr": "fd00::/48"})).block_prefix, 122);
        assert_eq!(v4.block_of("10.0.1.70".parse().unwrap()), Some("10.0.1.64/26".parse().unwrap()));
        assert_eq!(v4.block_of("10.1.1.70".parse().unwrap()), None);
    }

    #[test]
    fn pools_that_make_no_sense_are_not_pools() {
        for spec in [
            json!({}),
            json!({"cidr": "x"}),
            json!({"cidr": "10.0.0.0/16", "blockSize": 8}),
            json!({"cidr": "10.0.0.0/16", "blockSize": 33}),
            json!({"cidr": "fd00::/48", "blockSize": 64}),
            json!({"cidr": "fd00::/48", "blockSize": 99999}),
        ] {
            assert_eq!(from_json(json!({"metadata": {"name": "p"}, "spec": spec.clone()})), None, "{spec}");
        }
    }

    #[test]
    fn disabled_terminating_and_refused_pools_are_off() {
        assert!(!pool("p", json!({"cidr": "10.0.0.0/16", "disabled": true})).enabled);
        for object in [
            json!({"metadata": {"deletionTimestamp": "2026-03-01T10:20:30Z"}, "spec": {"cidr": "10.0.0.0/16"}}),
            json!({"metadata": {}, "spec": {"cidr": "10.0.0.0/16"},
                   "status": {"conditions": [{"type": "Allocatable", "status": "False"}]}}),
        ] {
            assert!(!from_json(object).unwrap().enabled);
        }
    }

    #[test]
    fn selection() {
        let pools = [
            pool("a", json!({"cidr": "10.0.0.0/24", "nodeSelector": "rack == '1'"})),
            pool("b", json!({"cidr": "10.0.1.0/24", "nodeSelector": "all()"})),
            pool("c", json!({"cidr": "10.0.2.0/24", "assignmentMode": "Manual"})),
            pool(
                "d",
                json!({"cidr": "10.0.3.0/24", "namespaceSelector": "team == 'x'", "allowedUses": ["Workload"]}),
            ),
            pool("e", json!({"cidr": "10.0.4.0/24", "disabled": true})),
            pool("f", json!({"cidr": "10.0.5.0/24", "allowedUses": ["LoadBalancer"]})),
            pool("g", json!({"cidr": "10.0.6.0/24", "nodeSelector": "(("})),
        ];
        let (rack, team, none) = (labels(&[("rack", "1")]), labels(&[("team", "x")]), labels(&[]));
        let any = PoolCriteria {
            version: 4,
            node: "n1",
            node_labels: &rack,
            namespace_labels: &team,
            requested: &[],
            intended: AddressUse::Workload,
            longest_prefix: 32,
        };
        let ok = |names: &[&str]| Ok(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        assert_eq!(names(&pools, &any), ok(&["a", "b", "d"]));
        assert_eq!(names(&pools, &PoolCriteria { intended: AddressUse::Tunnel, ..any }), ok(&["a", "b"]));
        assert_eq!(names(&pools, &PoolCriteria { intended: AddressUse::LoadBalancer, ..any }), ok(&["f"]));
        assert_eq!(
            names(&pools, &PoolCriteria { node_labels: &none, namespace_labels: &none, ..any }),
            ok(&["b"])
        );
        let requested = [net("10.0.2.0/24"), net("10.0.0.0/24")];
        let by_name = PoolCriteria { requested: &requested, node_labels: &none, ..any };
        assert_eq!(names(&pools, &by_name), ok(&["c", "a"]));
        for (choice, text) in [
            (PoolCriteria { version: 6, ..any }, "cannot find a qualified ippool for IPv6"),
            (PoolCriteria { longest_prefix: 25, ..any }, "cannot find a qualified ippool for IPv4"),
            (
                PoolCriteria { requested: &[net("10.0.4.0/24")], ..any },
                "the given pool (10.0.4.0/24) does not exist, or is not enabled",
            ),
            (
                PoolCriteria { requested: &[net("10.0.5.0/24")], ..any },
                "cannot find a qualified ippool for IPv4 with allowed use Workload",
            ),
        ] {
            assert_eq!(names(&pools, &choice), Err(text.to_owned()));
        }
        let elsewhere = PoolCriteria { node_labels: &none, namespace_labels: &none, ..any };
        assert_eq!(names(&pools[..1], &elsewhere), Err("no configured Calico pools for node n1".to_owned()));
    }
}
