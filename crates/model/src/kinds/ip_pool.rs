//! Pools of addresses for workloads, tunnels and load balancers.

use super::{Condition, cel_settings};
use crate::object::StatusForm;
use crate::scalar::StringEnum;
use crate::schema::forms;
use crate::validation::{FieldChecker, InclusiveRange, NetworkFamily, parse_cidr};
use crate::{Kind, ResourceSpec, TypedObject, ValidationError, string_enum};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::net::{Ipv4Addr, Ipv6Addr};

string_enum! {
    /// Between which nodes packets are encapsulated.
    pub enum EncapMode { Never, Always, CrossSubnet }
}

string_enum! {
    /// A purpose for which addresses of a pool may be used.
    pub enum AllowedUse { Workload, Tunnel, LoadBalancer }
}

string_enum! {
    /// Whether addresses are assigned from the pool without an explicit request for it.
    pub enum AssignmentMode { Automatic, Manual }
}

pub type IPPool = TypedObject<IPPoolSpec>;

api_types! {
    #[schemars(extend("required" = ["cidr"], "x-kubernetes-validations" = cel_settings::ip_pool()))]
    pub struct IPPoolSpec {
        #[schemars(length(max = 48))]
        pub cidr: String = always,
        #[schemars(extend("default" = "Never"))]
        pub vxlan_mode: EncapMode,
        #[schemars(extend("default" = "Never"))]
        pub ipip_mode: EncapMode,
        /// Whether packets that leave the pools are masqueraded.
        pub nat_outgoing: bool,
        /// No new addresses are assigned from a disabled pool.
        pub disabled: bool,
        #[serde(rename = "disableBGPExport")]
        pub disable_bgp_export: bool,
        /// The prefix length of the blocks that nodes claim from the pool.
        #[schemars(range(min = 0, max = 128))]
        pub block_size: i32,
        #[schemars(schema_with = "forms::selector", extend("default" = "all()"))]
        pub node_selector: String,
        #[schemars(schema_with = "forms::selector")]
        pub namespace_selector: String,
        #[schemars(extend("default" = ["Workload", "Tunnel"], "x-kubernetes-list-type" = "set"))]
        pub allowed_uses: Vec<AllowedUse>,
        #[schemars(extend("default" = "Automatic"))]
        pub assignment_mode: AssignmentMode,
    }

    pub struct IPPoolStatus {
        pub conditions: Vec<Condition>,
    }
}

const LINK_LOCAL: [IpNet; 2] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(169, 254, 0, 0), 16)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10)),
];

impl ResourceSpec for IPPoolSpec {
    const KIND: Kind = Kind::IPPool;
    type Status = IPPoolStatus;
    const STATUS: StatusForm = StatusForm::WhenSet;

    fn set_defaults(pool: &mut IPPool) {
        let spec = &mut pool.spec;
        if let Some(net) = parse_cidr(&spec.cidr) {
            spec.cidr = net.to_string();
            if spec.block_size == 0 {
                spec.block_size = if net.addr().is_ipv4() { 26 } else { 122 };
            }
        }
        for mode in [&mut spec.vxlan_mode, &mut spec.ipip_mode] {
            if mode.is_unset() {
                *mode = EncapMode::Never;
            }
        }
        if spec.node_selector.is_empty() {
            spec.node_selector = "all()".to_owned();
        }
        if spec.allowed_uses.is_empty() {
            spec.allowed_uses = vec![AllowedUse::Workload, AllowedUse::Tunnel];
        }
        if spec.assignment_mode.is_unset() {
            spec.assignment_mode = AssignmentMode::Automatic;
        }
    }

    fn check_spec(&self, at: &FieldChecker<'_>) {
        self.check_cidr(at);
        self.check_encapsulation(at);
        at.field("nodeSelector").selector(&self.node_selector);
        at.field("namespaceSelector").selector(&self.namespace_selector);
        at.field("assignmentMode").one_of(&self.assignment_mode);
        self.check_uses(at);
    }
}

impl IPPoolSpec {
    fn check_cidr(&self, at: &FieldChecker<'_>) {
        let place = at.field("cidr");
        place.max_chars(&self.cidr, 48);
        if self.cidr.is_empty() {
            return place.fail("", "a pool must have a CIDR");
        }
        let Some(net) = place.masked_cidr(&self.cidr) else { return self.check_size_of_any_family(at) };
        if let Some(reserved) =
            LINK_LOCAL.iter().find(|reserved| reserved.contains(&net) || net.contains(*reserved))
        {
            place.fail(&self.cidr, format!("must not overlap the link-local range {reserved}"));
        }
        let family = NetworkFamily::of_net(net);
        let sizes =
            if family == NetworkFamily::V4 { InclusiveRange(20, 32) } else { InclusiveRange(116, 128) };
        if self.block_size != 0 {
            at.field("blockSize").within(self.block_size, sizes);
            let too_small = i32::from(net.prefix_len()) > self.block_size && !self.disabled;
            place.ensure(!too_small, &self.cidr, "the pool is smaller than one of its blocks (blockSize)");
        }
        let wrapped = is_wrapped(&self.ipip_mode);
        at.field("ipipMode").ensure(
            family == NetworkFamily::V4 || !wrapped,
            &self.ipip_mode,
            "IPIP cannot carry IPv6: ipipMode must be Never",
        );
    }

    /// Checks the block size if the network, and thus the address family, is unknown: reports sizes that are
    /// invalid in both families.
    fn check_size_of_any_family(&self, at: &FieldChecker<'_>) {
        at.field("blockSize").ensure(
            matches!(self.block_size, 0 | 20..=32 | 116..=128),
            self.block_size,
            "must be between 20 and 32 (IPv4) or between 116 and 128 (IPv6)",
        );
    }

    fn check_encapsulation(&self, at: &FieldChecker<'_>) {
        at.field("ipipMode").one_of(&self.ipip_mode);
        at.field("vxlanMode").one_of(&self.vxlan_mode);
        let both = is_wrapped(&self.ipip_mode) && is_wrapped(&self.vxlan_mode);
        at.field("ipipMode").ensure(
            !both,
            &self.ipip_mode,
            "ipipMode and vxlanMode cannot both be used on one pool",
        );
    }

    fn check_uses(&self, at: &FieldChecker<'_>) {
        let place = at.field("allowedUses");
        for (place, used) in place.each(&self.allowed_uses) {
            place.required_one_of(used);
        }
        place.unique(&self.allowed_uses);
        if self.allowed_uses.contains(&AllowedUse::Tunnel) {
            at.field("namespaceSelector").ensure(
                self.namespace_selector.is_empty(),
                &self.namespace_selector,
                "cannot be used on a pool for tunnel addresses: these belong to no namespace",
            );
        }
        if self.allowed_uses.contains(&AllowedUse::LoadBalancer) {
            self.check_load_balancer(at);
        }
    }

    fn check_load_balancer(&self, at: &FieldChecker<'_>) {
        at.field("allowedUses").ensure(
            self.allowed_uses.len() == 1,
            uses(&self.allowed_uses),
            "LoadBalancer cannot be combined with other uses",
        );
        for (key, mode) in [("ipipMode", &self.ipip_mode), ("vxlanMode", &self.vxlan_mode)] {
            at.field(key).ensure(!is_wrapped(mode), mode, "must be Never on a pool for load balancers");
        }
        at.field("disableBGPExport").ensure(
            !self.disable_bgp_export,
            self.disable_bgp_export,
            "must be false on a pool for load balancers",
        );
        at.field("nodeSelector").ensure(
            matches!(self.node_selector.as_str(), "" | "all()"),
            &self.node_selector,
            "must be all() on a pool for load balancers",
        );
    }
}

impl IPPool {
    /// Checks whether a stored pool may be updated to `new`.
    pub fn check_update(&self, new: &IPPool) -> Result<(), ValidationError> {
        FieldChecker::run(|at| {
            let old = &self.spec;
            let new = &new.spec;
            let at = at.field("spec");
            let same_net = match (parse_cidr(&old.cidr), parse_cidr(&new.cidr)) {
                (Some(old), Some(new)) => old == new,
                _ => old.cidr == new.cidr,
            };
            at.field("cidr").ensure(
                same_net,
                &new.cidr,
                format!("the CIDR of a pool cannot be changed: it is {}", old.cidr),
            );
            at.field("blockSize").ensure(
                old.block_size == new.block_size,
                new.block_size,
                format!("the block size of a pool cannot be changed: it is {}", old.block_size),
            );
            let gives_up = old.allowed_uses.contains(&AllowedUse::LoadBalancer)
                && new.allowed_uses.iter().any(|used| *used != AllowedUse::LoadBalancer);
            at.field("allowedUses").ensure(
                !gives_up,
                uses(&new.allowed_uses),
                "a pool for load balancers cannot be given another use",
            );
        })
    }
}

fn is_wrapped(mode: &EncapMode) -> bool {
    !matches!(mode.as_str(), "" | "Never")
}

fn uses(uses: &[AllowedUse]) -> String {
    uses.iter().map(AllowedUse::as_str).collect::<Vec<_>>().join(",")
}
