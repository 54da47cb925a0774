//! A request to report the status of a node, and the reported status.

use super::cel_settings;
use super::shared::check_name;
use crate::object::StatusForm;
use crate::schema::forms;
use crate::validation::{FieldChecker, InclusiveRange};
use crate::{Kind, ResourceSpec, TypedObject, string_enum};

string_enum! {
    /// A category of status information.
    pub enum NodeStatusClass { Agent, BGP, Routes }
}

string_enum! {
    /// The state of the BGP daemon.
    pub enum BGPDaemonState { Ready, NotReady }
}

string_enum! {
    /// The configuration that a session originates from.
    pub enum BGPPeerType { NodeMesh, NodePeer, GlobalPeer }
}

string_enum! {
    pub enum BGPSessionState { Idle, Connect, Active, OpenSent, OpenConfirm, Established, Close }
}

string_enum! {
    /// Whether a route is installed (FIB) or only known (RIB).
    pub enum NodeRouteType { FIB, RIB }
}

string_enum! {
    /// The source of a route.
    pub enum NodeRouteSource { Kernel, Static, Direct, NodeMesh, BGPPeer }
}

pub type CalicoNodeStatus = TypedObject<CalicoNodeStatusSpec>;

api_types! {
    #[schemars(extend("required" = ["node", "classes", "updatePeriodSeconds"]))]
    pub struct CalicoNodeStatusSpec {
        #[schemars(schema_with = "forms::name")]
        pub node: String,
        #[schemars(length(min = 1, max = 3), extend("x-kubernetes-validations" = cel_settings::unique()))]
        pub classes: Vec<NodeStatusClass>,
        /// 0 disables the refresh.
        #[schemars(range(min = 0, max = 86400))]
        pub update_period_seconds: Option<i64>,
    }

    pub struct CalicoNodeStatusStatus {
        /// RFC 3339, UTC, whole seconds.
        pub last_updated: Option<String>,
        pub agent: Option<NodeAgentStatus>,
        pub bgp: Option<NodeBGPStatus>,
        pub routes: Option<NodeRouteStatus>,
    }

    pub struct NodeAgentStatus {
        pub bird_v4: Option<BGPDaemonStatus>,
        pub bird_v6: Option<BGPDaemonStatus>,
    }

    pub struct BGPDaemonStatus {
        pub state: BGPDaemonState,
        pub version: String,
        #[serde(rename = "routerID")]
        pub router_id: String,
        pub last_boot_time: String,
        pub last_reconfiguration_time: String,
    }

    pub struct NodeBGPStatus {
        pub number_established_v4: u32 = always,
        pub number_not_established_v4: u32 = always,
        pub number_established_v6: u32 = always,
        pub number_not_established_v6: u32 = always,
        pub peers_v4: Vec<NodePeer>,
        pub peers_v6: Vec<NodePeer>,
    }

    pub struct NodePeer {
        #[serde(rename = "peerIP")]
        pub peer_ip: String,
        #[serde(rename = "type")]
        pub type_: BGPPeerType,
        pub state: BGPSessionState,
        /// When the state last changed.
        pub since: String,
    }

    pub struct NodeRouteStatus {
        pub routes_v4: Vec<NodeRoute>,
        pub routes_v6: Vec<NodeRoute>,
    }

    pub struct NodeRoute {
        #[serde(rename = "type")]
        pub type_: NodeRouteType,
        pub destination: String,
        pub gateway: String,
        pub interface: String,
        pub learned_from: Option<NodeRouteLearnedFrom>,
    }

    pub struct NodeRouteLearnedFrom {
        pub source_type: NodeRouteSource,
        #[serde(rename = "peerIP")]
        pub peer_ip: String,
    }
}

impl ResourceSpec for CalicoNodeStatusSpec {
    const KIND: Kind = Kind::CalicoNodeStatus;
    type Status = CalicoNodeStatusStatus;
    const STATUS: StatusForm = StatusForm::Always;

    fn check_spec(&self, at: &FieldChecker<'_>) {
        check_name(&at.field("node"), &self.node);
        let place = at.field("classes");
        place.ensure(!self.classes.is_empty(), "", "must name at least one of Agent, BGP, Routes");
        for (at, class) in place.each(&self.classes) {
            at.required_one_of(class);
        }
        place.unique(&self.classes);
        match self.update_period_seconds {
            Some(seconds) => at.field("updatePeriodSeconds").within(seconds, InclusiveRange(0, 86_400)),
            None => at.field("updatePeriodSeconds").fail("", "must be set; 0 asks for no refresh"),
        }
    }
}
