//! BGP peers of nodes.

use super::cel_settings;
use super::shared::{BGPPassword, check_name, check_optional_name};
use crate::object::NoStatus;
use crate::scalar::{ASNumber, GoDuration, is_default};
use crate::schema::forms;
use crate::validation::{FieldChecker, NetworkFamily};
use crate::{Kind, ResourceSpec, TypedObject, string_enum};
use std::net::{IpAddr, SocketAddr};

string_enum! {
    /// The next hop in routes advertised to the peer.
    pub enum NextHopMode { Auto, Self_ = "Self", Keep }
}

string_enum! {
    /// The source address of BGP sessions.
    pub enum SourceAddress { UseNodeIP, None }
}

string_enum! {
    /// Whether selected peers establish the reverse session without a BGPPeer of their own.
    pub enum ReversePeering { Auto, Manual }
}

pub type BGPPeer = TypedObject<BGPPeerSpec>;

api_types! {
    #[schemars(extend("x-kubernetes-validations" = cel_settings::bgp_peer()))]
    pub struct BGPPeerSpec {
        /// The node that has this peer. If neither this nor `nodeSelector` is set, all nodes have it.
        #[schemars(schema_with = "forms::optional_name")]
        pub node: String,
        #[schemars(schema_with = "forms::selector")]
        pub node_selector: String,
        /// `address`, `v4-address:port` or `[v6-address]:port`.
        #[serde(rename = "peerIP")]
        #[schemars(schema_with = "forms::optional_peer_address")]
        pub peer_ip: String,
        pub as_number: ASNumber,
        #[serde(rename = "localASNumber")]
        pub local_as_number: Option<ASNumber>,
        /// The other nodes to peer with.
        #[schemars(schema_with = "forms::selector")]
        pub peer_selector: String,
        /// Deprecated in favour of `nextHopMode`.
        pub keep_original_next_hop: bool,
        pub next_hop_mode: NextHopMode,
        pub password: Option<BGPPassword>,
        pub source_address: SourceAddress,
        pub max_restart_time: Option<GoDuration>,
        pub keepalive_time: Option<GoDuration>,
        #[serde(rename = "numAllowedLocalASNumbers")]
        pub num_allowed_local_as_numbers: Option<i32>,
        /// The number of hops to the peer; packets from further away are dropped.
        pub ttl_security: Option<u8>,
        /// The gateway through which the peer is reached.
        #[schemars(schema_with = "forms::optional_address")]
        pub reachable_by: String,
        /// Names of BGPFilters, in the order in which they are applied.
        #[schemars(schema_with = "forms::names")]
        pub filters: Vec<String>,
        /// The workloads on the node to peer with.
        #[schemars(schema_with = "forms::selector")]
        pub local_workload_selector: String,
        pub reverse_peering: ReversePeering,
    }
}

impl ResourceSpec for BGPPeerSpec {
    const KIND: Kind = Kind::BGPPeer;
    type Status = NoStatus;

    fn check_spec(&self, at: &FieldChecker<'_>) {
        check_optional_name(&at.field("node"), &self.node);
        for (key, selector) in [
            ("nodeSelector", &self.node_selector),
            ("peerSelector", &self.peer_selector),
            ("localWorkloadSelector", &self.local_workload_selector),
        ] {
            at.field(key).selector(selector);
        }
        at.field("nextHopMode").one_of(&self.next_hop_mode);
        at.field("sourceAddress").one_of(&self.source_address);
        at.field("reversePeering").one_of(&self.reverse_peering);
        if let Some(password) = &self.password {
            password.check(&at.field("password"));
        }
        for (at, filter) in at.field("filters").each(&self.filters) {
            check_name(&at, filter);
        }
        self.check_addresses(at);
        self.check_exclusions(at);
    }
}

impl BGPPeerSpec {
    /// Returns the peer's address and port, if specified; `None` if `peerIP` is empty or malformed.
    pub fn peer_address(&self) -> Option<(IpAddr, Option<u16>)> {
        if let Ok(address) = self.peer_ip.parse() {
            return Some((address, None));
        }
        let socket: SocketAddr = self.peer_ip.parse().ok()?;
        // Reject scope identifiers: they would parse as part of a socket address but have no meaning here.
        (socket.port() != 0 && !self.peer_ip.contains('%')).then(|| (socket.ip(), Some(socket.port())))
    }

    fn check_addresses(&self, at: &FieldChecker<'_>) {
        let peer = self.peer_address();
        at.field("peerIP").ensure(
            self.peer_ip.is_empty() || peer.is_some(),
            &self.peer_ip,
            "must be an IP address, optionally with a port: <IPv4>:<port> or [<IPv6>]:<port>",
        );
        if self.reachable_by.is_empty() {
            return;
        }
        let place = at.field("reachableBy");
        match (place.ip(&self.reachable_by), peer) {
            (_, None) => place.fail(&self.reachable_by, "needs a peerIP"),
            (Some(gateway), Some((peer, _))) => place.ensure(
                NetworkFamily::of(gateway) == NetworkFamily::of(peer),
                &self.reachable_by,
                "must be of the same address family as peerIP",
            ),
            (None, Some(_)) => (),
        }
    }

    fn check_exclusions(&self, at: &FieldChecker<'_>) {
        at.field("nodeSelector").ensure(
            self.node.is_empty() || self.node_selector.is_empty(),
            &self.node_selector,
            "cannot be set together with node",
        );
        at.field("peerIP").ensure(
            self.peer_ip.is_empty() || self.peer_selector.is_empty(),
            &self.peer_ip,
            "cannot be set together with peerSelector",
        );
        at.field("asNumber").ensure(
            self.as_number.0 == 0 || self.peer_selector.is_empty(),
            self.as_number,
            "cannot be set together with peerSelector: selected nodes bring their own",
        );
        if !self.local_workload_selector.is_empty() {
            const REASON: &str = "cannot be set together with localWorkloadSelector";
            at.field("peerIP").ensure(self.peer_ip.is_empty(), &self.peer_ip, REASON);
            at.field("peerSelector").ensure(self.peer_selector.is_empty(), &self.peer_selector, REASON);
            at.field("asNumber").ensure(
                self.as_number.0 != 0,
                self.as_number,
                "must be set when localWorkloadSelector is",
            );
        }
        at.field("keepOriginalNextHop").ensure(
            !self.keep_original_next_hop || is_default(&self.next_hop_mode),
            self.keep_original_next_hop,
            "cannot be set together with nextHopMode, which replaces it",
        );
    }
}
