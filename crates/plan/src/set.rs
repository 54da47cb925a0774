//! Address sets: the current members of a selector, a named port or a service.

use ipnet::IpNet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// The addresses of all workloads in Istio's ambient mesh. In the plan while `istioAmbientMode` is enabled.
pub const AMBIENT_WORKLOADS_SET: &str = "all-istio-weps";

/// Calico's unique ID of a set: `s:...`, `n:...`, `svc:...` or `svcnoport:...`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SetId(pub Arc<str>);

impl SetId {
    pub fn new(id: &str) -> SetId {
        SetId(id.into())
    }
}

impl fmt::Display for SetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SetKind {
    /// Members are [`SetMember::Net`].
    Nets,
    /// Members are [`SetMember::Port`].
    Ports,
}

/// A member of a set. Both families share one set here; the kernel has one set for each. Nets may overlap; 0.0.0.0/0
/// and ::/0 do occur.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SetMember {
    Net(IpNet),
    Port { address: IpAddr, protocol: u8, port: u16 },
}
