//! A request to report the status of a node, and the reported status.

use super::cel_settings;
use super::shared::check_name;
use crate::object::StatusForm;
use crate::scalar::is_default;
use crate::schema::forms;
use crate::validation::{FieldChecker, InclusiveRange};
use crate::{Kind, ResourceSpec, TypedObject, string_enum};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["node", "classes", "updatePeriodSeconds"]))]
pub struct CalicoNodeStatusSpec {
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "forms::name")]
    pub node: String,
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(length(min = 1, max = 3), extend("x-kubernetes-validations" = cel_settings::unique()))]
    pub classes: Vec<NodeStatusClass>,
    /// 0 disables the refresh.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(range(min = 0, max = 86400))]
    pub update_period_seconds: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct CalicoNodeStatusStatus {
    /// RFC 3339, UTC, whole seconds.
    #[serde(skip_serializing_if = "is_default")]
    pub last_updated: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub agent: Option<NodeAgentStatus>,
    #[serde(skip_serializing_if = "is_default")]
    pub bgp: Option<NodeBGPStatus>,
    #[serde(skip_serializing_if = "is_default")]
    pub routes: Option<NodeRouteStatus>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NodeAgentStatus {
    #[serde(rename = "birdV4", skip_serializing_if = "is_default")]
    pub bird_v4: Option<BGPDaemonStatus>,
    #[serde(rename = "birdV6", skip_serializing_if = "is_default")]
    pub bird_v6: Option<BGPDaemonStatus>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct BGPDaemonStatus {
    #[serde(skip_serializing_if = "is_default")]
    pub state: BGPDaemonState,
    #[serde(skip_serializing_if = "is_default")]
    pub version: String,
    #[serde(rename = "routerID", skip_serializing_if = "is_default")]
    pub router_id: String,
    #[serde(skip_serializing_if = "is_default")]
    pub last_boot_time: String,
    #[serde(skip_serializing_if = "is_default")]
    pub last_reconfiguration_time: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NodeBGPStatus {
    #[serde(rename = "numberEstablishedV4")]
    pub number_established_v4: u32,
    #[serde(rename = "numberNotEstablishedV4")]
    pub number_not_established_v4: u32,
    #[serde(rename = "numberEstablishedV6")]
    pub number_established_v6: u32,
    #[serde(rename = "numberNotEstablishedV6")]
    pub number_not_established_v6: u32,
    #[serde(rename = "peersV4", skip_serializing_if = "is_default")]
    pub peers_v4: Vec<NodePeer>,
    #[serde(rename = "peersV6", skip_serializing_if = "is_default")]
    pub peers_v6: Vec<NodePeer>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NodePeer {
    #[serde(rename = "peerIP", skip_serializing_if = "is_default")]
    pub peer_ip: String,
    #[serde(rename = "type", skip_serializing_if = "is_default")]
    pub type_: BGPPeerType,
    #[serde(skip_serializing_if = "is_default")]
    pub state: BGPSessionState,
    /// When the state last changed.
    #[serde(skip_serializing_if = "is_default")]
    pub since: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NodeRouteStatus {
    #[serde(rename = "routesV4", skip_serializing_if = "is_default")]
    pub routes_v4: Vec<NodeRoute>,
    #[serde(rename = "routesV6", skip_serializing_if = "is_default")]
    pub routes_v6: Vec<NodeRoute>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeRoute {
    #[serde(rename = "type", skip_serializing_if = "is_default")]
    pub type_: NodeRouteType,
    #[serde(skip_serializing_if = "is_default")]
    pub destination: String,
    #[serde(skip_serializing_if = "is_default")]
    pub gateway: String,
    #[serde(skip_serializing_if = "is_default")]
    pub interface: String,
    #[serde(skip_serializing_if = "is_default")]
    pub learned_from: Option<NodeRouteLearnedFrom>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeRouteLearnedFrom {
    #[serde(skip_serializing_if = "is_default")]
    pub source_type: NodeRouteSource,
    #[serde(rename = "peerIP", skip_serializing_if = "is_default")]
    pub peer_ip: String,
}

impl ResourceSpec for CalicoNodeStatusSpec {
    const KIND: Kind = Kind::CalicoNodeStatus;
    type Status = CalicoNodeStatusStatus;
    const STATUS: StatusForm = StatusForm::Always;

    fn check(status: &CalicoNodeStatus, at: &FieldChecker<'_>) {
        let (spec, at) = (&status.spec, at.field("spec"));
        check_name(&at.field("node"), &spec.node);
        let place = at.field("classes");
        place.ensure(!spec.classes.is_empty(), "", "must name at least one of Agent, BGP, Routes");
        for (at, class) in place.each(&spec.classes) {
            at.required_one_of(class);
        }
        place.unique(&spec.classes);
        match spec.update_period_seconds {
            Some(seconds) => at.field("updatePeriodSeconds").within(seconds, InclusiveRange(0, 86_400)),
            None => at.field("updatePeriodSeconds").fail("", "must be set; 0 asks for no refresh"),
        }
    }
}
