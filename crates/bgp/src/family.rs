//! The two address families that a session can carry, and the code that differs between them.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use rustbgpd_wire::{Afi, Ipv4Prefix, Ipv6Prefix, Safi};
use std::fmt;
use std::hash::Hash;
use std::net::IpAddr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BgpFamily {
    V4,
    V6,
}

impl BgpFamily {
    pub const ALL: [BgpFamily; 2] = [BgpFamily::V4, BgpFamily::V6];

    pub fn of(address: IpAddr) -> BgpFamily {
        if address.is_ipv4() { BgpFamily::V4 } else { BgpFamily::V6 }
    }

    pub(crate) fn wire(self) -> (Afi, Safi) {
        match self {
            BgpFamily::V4 => (Afi::Ipv4, Safi::Unicast),
            BgpFamily::V6 => (Afi::Ipv6, Safi::Unicast),
        }
    }

    pub(crate) fn from_wire(afi: Afi, safi: Safi) -> Option<BgpFamily> {
        match (afi, safi) {
            (Afi::Ipv4, Safi::Unicast) => Some(BgpFamily::V4),
            (Afi::Ipv6, Safi::Unicast) => Some(BgpFamily::V6),
            _ => None,
        }
    }
}

impl fmt::Display for BgpFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BgpFamily::V4 => "ipv4",
            BgpFamily::V6 => "ipv6",
        })
    }
}

/// One value for each family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PerFamily<T> {
    pub v4: T,
    pub v6: T,
}

impl<T> PerFamily<T> {
    pub fn get(&self, family: BgpFamily) -> &T {
        match family {
            BgpFamily::V4 => &self.v4,
            BgpFamily::V6 => &self.v6,
        }
    }

    pub fn get_mut(&mut self, family: BgpFamily) -> &mut T {
        match family {
            BgpFamily::V4 => &mut self.v4,
            BgpFamily::V6 => &mut self.v6,
        }
    }
}

/// A prefix of one family, used as the key of a routing table.
pub trait Prefix: Copy + Eq + Ord + Hash + fmt::Debug + fmt::Display + Send + 'static {
    const FAMILY: BgpFamily;
    fn net(self) -> IpNet;
    fn from_net(net: IpNet) -> Option<Self>;
    fn length(self) -> u8;
    /// Returns the network bits as a number, without the host bits.
    fn bits(self) -> u128;
    /// Appends the prefix in wire format: its length and the significant octets.
    fn encode(self, out: &mut Vec<u8>);
}

impl Prefix for Ipv4Prefix {
    const FAMILY: BgpFamily = BgpFamily::V4;

    fn net(self) -> IpNet {
        // The codec rejects lengths over 32.
        IpNet::V4(Ipv4Net::new(self.addr, self.len).unwrap_or_default())
    }

    fn from_net(net: IpNet) -> Option<Self> {
        match net {
            IpNet::V4(net) => Some(Ipv4Prefix::new(net.addr(), net.prefix_len())),
            IpNet::V6(_) => None,
        }
    }

    fn length(self) -> u8 {
        self.len
    }

    fn bits(self) -> u128 {
        self.addr.to_bits().checked_shr(32 - u32::from(self.len)).unwrap_or(0).into()
    }

    fn encode(self, out: &mut Vec<u8>) {
        out.push(self.len);
        out.extend(self.addr.octets().iter().take(usize::from(self.len.div_ceil(8))));
    }
}

impl Prefix for Ipv6Prefix {
    const FAMILY: BgpFamily = BgpFamily::V6;

    fn net(self) -> IpNet {
        IpNet::V6(Ipv6Net::new(self.addr, self.len).unwrap_or_default())
    }

    fn from_net(net: IpNet) -> Option<Self> {
        match net {
            IpNet::V6(net) => Some(Ipv6Prefix::new(net.addr(), net.prefix_len())),
            IpNet::V4(_) => None,
        }
    }

    fn length(self) -> u8 {
        self.len
    }

    fn bits(self) -> u128 {
        self.addr.to_bits().checked_shr(128 - u32::from(self.len)).unwrap_or(0)
    }

    fn encode(self, out: &mut Vec<u8>) {
        out.push(self.len);
        out.extend(self.addr.octets().iter().take(usize::from(self.len.div_ceil(8))));
    }
}
