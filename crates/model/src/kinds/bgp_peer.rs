//! BGP peers of nodes.

use super::cel_settings;
use super::shared::{BGPPassword, check_name, check_optional_name};
use crate::object::{NoStatus, StatusForm};
use crate::scalar::{ASNumber, GoDuration, is_default};
use crate::schema::forms;
use crate::validation::{FieldChecker, NetworkFamily};
use crate::{Kind, ResourceSpec, TypedObject, string_enum};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
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

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cel_settings::bgp_peer()))]
pub struct BGPPeerSpec {
    /// The node that has this peer. If neither this nor `nodeSelector` is set, all nodes have it.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::optional_name")]
    pub node: String,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::selector")]
    pub node_selector: String,
    /// `address`, `v4-address:port` or `[v6-address]:port`.
    #[serde(rename = "peerIP", skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::optional_peer_address")]
    pub peer_ip: String,
    #[serde(skip_serializing_if = "is_default")]
    pub as_number: ASNumber,
    #[serde(rename = "localASNumber", skip_serializing_if = "is_default")]
    pub local_as_number: Option<ASNumber>,
    /// The other nodes to peer with.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::selector")]
    pub peer_selector: String,
    /// Deprecated in favour of `nextHopMode`.
    #[serde(skip_serializing_if = "is_default")]
    pub keep_original_next_hop: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub next_hop_mode: NextHopMode,
    #[serde(skip_serializing_if = "is_default")]
    pub password: Option<BGPPassword>,
    #[serde(skip_serializing_if = "is_default")]
    pub source_address: SourceAddress,
    #[serde(skip_serializing_if = "is_default")]
    pub max_restart_time: Option<GoDuration>,
    #[serde(skip_serializing_if = "is_default")]
    pub keepalive_time: Option<GoDuration>,
    #[serde(rename = "numAllowedLocalASNumbers", skip_serializing_if = "is_default")]
    pub num_allowed_local_as_numbers: Option<i32>,
    /// The number of hops to the peer; packets from further away are dropped.
    #[serde(skip_serializing_if = "is_default")]
    pub ttl_security: Option<u8>,
    /// The gateway through which the peer is reached.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::optional_address")]
    pub reachable_by: String,
    /// Names of BGPFilters, in the order in which they are applied.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::names")]
    pub filters: Vec<String>,
    /// The workloads on the node to peer with.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::selector")]
    pub local_workload_selector: String,
    #[serde(skip_serializing_if = "is_default")]
    pub reverse_peering: ReversePeering,
}

impl ResourceSpec for BGPPeerSpec {
    const KIND: Kind = Kind::BGPPeer;
    type Status = NoStatus;
    const STATUS: StatusForm = StatusForm::Absent;

    fn check(peer: &BGPPeer, at: &FieldChecker<'_>) {
        let (spec, at) = (&peer.spec, at.field("spec"));
        check_optional_name(&at.field("node"), &spec.node);
        for (key, selector) in [
            ("nodeSelector", &spec.node_selector),
            ("peerSelector", &spec.peer_selector),
            ("localWorkloadSelector", &spec.local_workload_selector),
        ] {
            at.field(key).selector(selector);
        }
        at.field("nextHopMode").one_of(&spec.next_hop_mode);
        at.field("sourceAddress").one_of(&spec.source_address);
        at.field("reversePeering").one_of(&spec.reverse_peering);
        if let Some(password) = &spec.password {
            password.check(&at.field("password"));
        }
        for (at, filter) in at.field("filters").each(&spec.filters) {
            check_name(&at, filter);
        }
        spec.check_addresses(&at);
        spec.check_exclusions(&at);
    }
}

impl BGPPeerSpec {
    /// Returns the peer's address and port, if specified; `None` if `peerIP` is empty or malformed.
    pub fn peer_address(&self) -> Option<(IpAddr, Option<u16>)> {
        let address = self.peer_ip.parse().map(|ip| (ip, None));
        // Reject scope identifiers: they would parse as part of a socket address but have no meaning here.
        let socket = || self.peer_ip.parse::<SocketAddr>().map(|socket| (socket.ip(), Some(socket.port())));
        address
            .ok()
            .or_else(|| socket().ok().filter(|(_, port)| *port != Some(0) && !self.peer_ip.contains('%')))
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
        let set = |text: &String| !text.is_empty();
        at.field("nodeSelector").ensure(
            !(set(&self.node) && set(&self.node_selector)),
            &self.node_selector,
            "cannot be set together with node",
        );
        at.field("peerIP").ensure(
            !(set(&self.peer_ip) && set(&self.peer_selector)),
            &self.peer_ip,
            "cannot be set together with peerSelector",
        );
        at.field("asNumber").ensure(
            !(self.as_number.0 != 0 && set(&self.peer_selector)),
            self.as_number,
            "cannot be set together with peerSelector: selected nodes bring their own",
        );
        if set(&self.local_workload_selector) {
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
