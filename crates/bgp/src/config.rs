//! The configuration of a speaker: plain data that is compared field by field when it changes.

use crate::family::BgpFamily;
use crate::filter::RouteFilter;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
pub use tortie_plan::bgp::AdvertisedNextHop;

/// Default limit of received routes per family: twice the size of the full Internet table.
pub const DEFAULT_MAX_PREFIXES: u32 = 2_000_000;
/// Default limit of paths per prefix of one peer: more than any route server sends.
pub const DEFAULT_MAX_PATHS_PER_PREFIX: u16 = 64;

/// The configuration of a whole speaker. [`crate::Speaker::reconfigure`] replaces it and touches only the sessions
/// that differ.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeakerConfig {
    pub asn: u32,
    pub router_id: Ipv4Addr,
    /// Addresses on which connections are accepted. If empty, none are.
    pub listen: Vec<SocketAddr>,
    /// Next hop that we advertise for IPv4 routes on sessions over IPv6.
    pub local_v4: Option<Ipv4Addr>,
    /// Next hop that we advertise for IPv6 routes on sessions over IPv4.
    pub local_v6: Option<Ipv6Addr>,
    /// Maximum number of next hops of one route; 1 disables multipath.
    pub multipath: usize,
    /// Maximum time that a restarted speaker waits for End-of-RIB from its peers before it advertises and installs
    /// routes.
    pub restart_wait: Duration,
    /// The sessions by name. The name identifies a session across reconfigurations.
    pub peers: BTreeMap<String, PeerConfig>,
}

impl SpeakerConfig {
    /// Creates the configuration of a speaker without peers and without listening sockets.
    pub fn new(asn: u32, router_id: Ipv4Addr) -> SpeakerConfig {
        SpeakerConfig {
            asn,
            router_id,
            listen: Vec::new(),
            local_v4: None,
            local_v6: None,
            multipath: 16,
            restart_wait: Duration::from_secs(240),
            peers: BTreeMap::new(),
        }
    }

    /// Rejects values with which no session could work. The error names the field and the value.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.asn == 0 {
            return refuse("asn", "0".into(), "is not an AS number");
        }
        if self.router_id.is_unspecified() {
            return refuse("router_id", self.router_id.to_string(), "cannot identify a router");
        }
        if self.multipath == 0 {
            return refuse("multipath", "0".into(), "must be at least 1");
        }
        self.peers.iter().try_for_each(|(name, peer)| peer.check(name))
    }

    /// Returns the AS number that we present to a peer.
    pub fn local_as(&self, peer: &PeerConfig) -> u32 {
        peer.local_as.unwrap_or(self.asn)
    }
}

/// The configuration of one session.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerConfig {
    pub address: IpAddr,
    pub port: u16,
    pub remote_as: u32,
    /// AS number that we present to this peer instead of our own.
    pub local_as: Option<u32>,
    /// Whether to only accept connections and never initiate one.
    pub passive: bool,
    /// Source address of outgoing connections. If `None`, the kernel chooses it.
    pub source: Option<IpAddr>,
    /// Password for TCP MD5 signatures (RFC 2385).
    pub password: Option<String>,
    /// Hold time in seconds; 0 disables keepalives.
    pub hold_time: u16,
    /// Keepalive interval in seconds. If `None`, a third of the negotiated hold time.
    pub keepalive: Option<u16>,
    /// Delay between a failed connection attempt and the next one.
    pub connect_retry: Duration,
    /// Time in Idle after an error: the initial value, and the maximum after repeated errors.
    pub idle_hold: (Duration, Duration),
    /// Restart time in seconds that we announce for graceful restart. `None` disables graceful restart.
    pub restart_time: Option<u16>,
    /// GTSM (RFC 5082): maximum number of hops to the peer.
    pub ttl_security: Option<u8>,
    pub next_hop: AdvertisedNextHop,
    /// Makes the peer our route reflector client, with this cluster identifier.
    pub reflect: Option<Ipv4Addr>,
    /// How many times our own AS may occur in a received AS_PATH.
    pub allow_own_as: u32,
    pub import: Arc<RouteFilter>,
    pub export: Arc<RouteFilter>,
    pub families: Vec<BgpFamily>,
    /// Whether to send and receive several paths per prefix (RFC 7911), as far as the peer supports it.
    pub add_path: bool,
    /// Limit of routes per family. Exceeding it ends the session (Cease, Maximum Number of Prefixes Reached).
    pub max_prefixes: Option<u32>,
    /// Limit of paths per prefix (RFC 7911). Exceeding it ends the session in the same way.
    pub max_paths_per_prefix: u16,
    /// How long after a limit was exceeded we neither connect to the peer nor accept connections from it.
    pub limit_hold: Duration,
    /// If set, the session must not come up; the text is the reason.
    pub shutdown: Option<String>,
}

impl PeerConfig {
    /// Creates a session that carries the family of its address, with the timers that Calico configures.
    pub fn new(address: IpAddr, remote_as: u32) -> PeerConfig {
        PeerConfig {
            address,
            port: 179,
            remote_as,
            local_as: None,
            passive: false,
            source: None,
            password: None,
            hold_time: 240,
            keepalive: None,
            connect_retry: Duration::from_secs(5),
            idle_hold: (Duration::from_secs(5), Duration::from_secs(30)),
            restart_time: Some(120),
            ttl_security: None,
            next_hop: AdvertisedNextHop::Auto,
            reflect: None,
            allow_own_as: 0,
            import: Arc::new(RouteFilter::accept()),
            export: Arc::new(RouteFilter::accept()),
            families: vec![BgpFamily::of(address)],
            add_path: false,
            max_prefixes: Some(DEFAULT_MAX_PREFIXES),
            max_paths_per_prefix: DEFAULT_MAX_PATHS_PER_PREFIX,
            limit_hold: Duration::from_secs(300),
            shutdown: None,
        }
    }

    /// Rejects values with which this session could not work.
    pub fn check(&self, name: &str) -> Result<(), ConfigError> {
        let field = |field: &str| format!("peers.{name}.{field}");
        if self.address.is_unspecified() || self.address.is_multicast() {
            return refuse(field("address"), self.address.to_string(), "is not an address of a peer");
        }
        if self.remote_as == 0 {
            return refuse(field("remote_as"), "0".into(), "is not an AS number");
        }
        if self.local_as == Some(0) {
            return refuse(field("local_as"), "0".into(), "is not an AS number");
        }
        if self.port == 0 {
            return refuse(field("port"), "0".into(), "is not a port");
        }
        if self.source.is_some_and(|source| source.is_ipv4() != self.address.is_ipv4()) {
            let value = self.source.map(|source| source.to_string()).unwrap_or_default();
            return refuse(field("source"), value, "is of another family than the peer's address");
        }
        if (1..3).contains(&self.hold_time) {
            return refuse(field("hold_time"), self.hold_time.to_string(), "must be 0 or at least 3");
        }
        if self.restart_time.is_some_and(|time| time > 4095) {
            let value = self.restart_time.unwrap_or_default().to_string();
            return refuse(field("restart_time"), value, "is over 4095 seconds");
        }
        if self.ttl_security == Some(0) {
            return refuse(field("ttl_security"), "0".into(), "must be at least one hop");
        }
        if self.password.as_ref().is_some_and(|password| password.is_empty() || password.len() > 80) {
            return refuse(field("password"), "(hidden)".into(), "must have 1 to 80 bytes");
        }
        if self.max_paths_per_prefix == 0 {
            return refuse(field("max_paths_per_prefix"), "0".into(), "must be at least 1");
        }
        if self.families.is_empty() {
            return refuse(field("families"), "none".into(), "must name at least one");
        }
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {value} {why}")]
pub struct ConfigError {
    pub field: String,
    pub value: String,
    pub why: &'static str,
}

fn refuse(field: impl Into<String>, value: String, why: &'static str) -> Result<(), ConfigError> {
    Err(ConfigError { field: field.into(), value, why })
}
