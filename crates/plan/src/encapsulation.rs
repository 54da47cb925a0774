//! How packets between nodes are wrapped, and what that takes of each.

/// A way of wrapping. Each family has its own where both can be wrapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Encapsulation {
    Ipip,
    Vxlan,
    VxlanV6,
}

impl Encapsulation {
    /// Bytes that the outer headers take of the MTU of the interface that carries the packets.
    pub const fn overhead(self) -> u32 {
        match self {
            Encapsulation::Ipip => 20,
            Encapsulation::Vxlan => 50,
            Encapsulation::VxlanV6 => 70,
        }
    }

    /// As people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Encapsulation::Ipip => "IPIP",
            Encapsulation::Vxlan => "VXLAN",
            Encapsulation::VxlanV6 => "VXLAN over IPv6",
        }
    }

    /// The setting that gives its MTU.
    pub const fn mtu_setting(self) -> &'static str {
        match self {
            Encapsulation::Ipip => "ipipMTU",
            Encapsulation::Vxlan => "vxlanMTU",
            Encapsulation::VxlanV6 => "vxlanMTUV6",
        }
    }
}
