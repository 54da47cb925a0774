//! Where things are kept: the store's keys, as types, and their text to the byte.

use crate::Kind;
use ipnet::IpNet;

/// Whether an address block belongs to a host or to something that is not one (a load balancer).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AffinityType {
    Host,
    Virtual,
}

/// The name of one thing in the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// A projectcalico.org/v3 resource; the namespace is empty for cluster-scoped kinds.
    Resource {
        kind: Kind,
        namespace: String,
        name: String,
    },
    Block {
        cidr: IpNet,
    },
    BlockAffinity {
        affinity: AffinityType,
        owner: String,
        cidr: IpNet,
    },
    Handle {
        id: String,
    },
    IpamConfig,
    /// Felix heartbeat, leased.
    FelixStatus {
        region: String,
        host: String,
    },
    /// Felix's last heartbeat, kept after the lease is gone.
    FelixLastStatus {
        region: String,
        host: String,
    },
    WorkloadEndpointStatus {
        region: String,
        host: String,
        orchestrator: String,
        workload: String,
        endpoint: String,
    },
    HostEndpointStatus {
        host: String,
        endpoint: String,
    },
}

/// A set of keys that can be listed and watched together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeyRange {
    /// All resources of a kind, in one namespace if given, whose names begin with `name_prefix`.
    Resources {
        kind: Kind,
        namespace: Option<String>,
        name_prefix: String,
    },
    Blocks {
        ip_version: Option<u8>,
    },
    /// `owner: None` lists every owner of that type.
    BlockAffinities {
        affinity: AffinityType,
        owner: Option<String>,
        ip_version: Option<u8>,
    },
    Handles,
    IpamConfig,
    FelixStatuses,
    WorkloadEndpointStatuses {
        region: Option<String>,
        host: Option<String>,
    },
    HostEndpointStatuses {
        host: Option<String>,
    },
}
