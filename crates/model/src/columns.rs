//! The table columns that Calico's tools show for each kind.

use crate::Kind;

/// The field that a cell shows and how it is formatted.
#[derive(Clone, Copy, Debug)]
pub enum CellSource {
    /// The text or number at this pointer; empty if the field is absent.
    At(&'static str),
    /// The text or number at this pointer, or the given default if the field is absent.
    Or(&'static str, &'static str),
    /// The number of elements of a list.
    Count(&'static str),
    /// The elements of a list, or the `key=value` pairs of a map, joined with commas.
    Joined(&'static str),
    /// The node, nodes or selector that a BGP peer applies to.
    PeerScope,
    /// The `matchLabels` of a Kubernetes pod selector.
    PodSelector,
}

impl CellSource {
    /// Returns the JSON pointer of the single field that a cell shows; `None` for cells that count elements
    /// or combine several fields.
    pub const fn pointer(self) -> Option<&'static str> {
        match self {
            CellSource::At(pointer) | CellSource::Or(pointer, _) | CellSource::Joined(pointer) => {
                Some(pointer)
            }
            CellSource::PodSelector => Some("/spec/podSelector/matchLabels"),
            CellSource::Count(_) | CellSource::PeerScope => None,
        }
    }
}

#[derive(Debug)]
pub struct TableColumn {
    pub name: &'static str,
    pub cell: CellSource,
    /// Whether the column appears only in wide tables.
    pub wide: bool,
    pub description: &'static str,
}

const fn column(name: &'static str, cell: CellSource, wide: bool, description: &'static str) -> TableColumn {
    TableColumn { name, cell, wide, description }
}

const TIER: TableColumn =
    column("Tier", CellSource::Or("/spec/tier", "default"), false, "Tier that the policy belongs to");
const ORDER: TableColumn =
    column("Order", CellSource::At("/spec/order"), true, "Order among the policies of the tier: lower first");
const SELECTOR: TableColumn =
    column("Selector", CellSource::At("/spec/selector"), true, "Endpoints that the policy applies to");
const NETS: TableColumn = column("Nets", CellSource::Joined("/spec/nets"), true, "Networks of the set");
const NODE: TableColumn =
    column("Node", CellSource::At("/spec/node"), false, "Node that the object belongs to");

const POLICY: &[TableColumn] = &[TIER, ORDER, SELECTOR];
const SET: &[TableColumn] = &[NETS];

/// Returns the columns of a kind between the name and the age.
pub fn columns(kind: Kind) -> &'static [TableColumn] {
    match kind {
        Kind::GlobalNetworkPolicy
        | Kind::NetworkPolicy
        | Kind::StagedGlobalNetworkPolicy
        | Kind::StagedNetworkPolicy => POLICY,
        Kind::GlobalNetworkSet | Kind::NetworkSet => SET,
        Kind::StagedKubernetesNetworkPolicy => {
            const { &[column("Pod-Selector", CellSource::PodSelector, true, "Pods that the policy applies to")] }
        }
        Kind::Tier => {
            const {
                &[
                    column(
                        "Order",
                        CellSource::At("/spec/order"),
                        false,
                        "Order among the tiers: lower first",
                    ),
                    column(
                        "Default-Action",
                        CellSource::At("/spec/defaultAction"),
                        true,
                        "Action for traffic that no rule matches",
                    ),
                ]
            }
        }
        Kind::IPPool => {
            const {
                &[
                    column("CIDR", CellSource::At("/spec/cidr"), false, "Addresses of the pool"),
                    column(
                        "Selector",
                        CellSource::Or("/spec/nodeSelector", "all()"),
                        false,
                        "Nodes that may use the pool",
                    ),
                    column(
                        "NAT",
                        CellSource::Or("/spec/natOutgoing", "false"),
                        true,
                        "Whether traffic that leaves the pools is masqueraded",
                    ),
                    column(
                        "IPIPMode",
                        CellSource::Or("/spec/ipipMode", "Never"),
                        true,
                        "When traffic between nodes is encapsulated in IP-in-IP",
                    ),
                    column(
                        "VXLANMode",
                        CellSource::Or("/spec/vxlanMode", "Never"),
                        true,
                        "When traffic between nodes is encapsulated in VXLAN",
                    ),
                    column(
                        "Disabled",
                        CellSource::Or("/spec/disabled", "false"),
                        true,
                        "Whether no more addresses are assigned from the pool",
                    ),
                    column(
                        "DisableBGPExport",
                        CellSource::Or("/spec/disableBGPExport", "false"),
                        true,
                        "Whether the pool is not advertised over BGP",
                    ),
                    column(
                        "AssignmentMode",
                        CellSource::Or("/spec/assignmentMode", "Automatic"),
                        true,
                        "Whether addresses are assigned without an explicit request",
                    ),
                ]
            }
        }
        Kind::BGPConfiguration => {
            const {
                &[
                    column(
                        "LogSeverity",
                        CellSource::At("/spec/logSeverityScreen"),
                        false,
                        "Lowest severity that is logged",
                    ),
                    column(
                        "MeshEnabled",
                        CellSource::At("/spec/nodeToNodeMeshEnabled"),
                        false,
                        "Whether every node peers with every other",
                    ),
                    column(
                        "ASNumber",
                        CellSource::At("/spec/asNumber"),
                        false,
                        "AS number of nodes that specify none",
                    ),
                ]
            }
        }
        Kind::BGPPeer => {
            const {
                &[
                    column("PeerIP", CellSource::At("/spec/peerIP"), false, "Address of the peer"),
                    column("Node", CellSource::PeerScope, false, "Nodes that peer with it"),
                    column("ASN", CellSource::At("/spec/asNumber"), false, "AS number of the peer"),
                ]
            }
        }
        Kind::BGPFilter => {
            const {
                &[
                    column(
                        "ExportV4",
                        CellSource::Count("/spec/exportV4"),
                        false,
                        "Number of rules for IPv4 routes that are advertised",
                    ),
                    column(
                        "ImportV4",
                        CellSource::Count("/spec/importV4"),
                        false,
                        "Number of rules for IPv4 routes that are learned",
                    ),
                    column(
                        "ExportV6",
                        CellSource::Count("/spec/exportV6"),
                        false,
                        "Number of rules for IPv6 routes that are advertised",
                    ),
                    column(
                        "ImportV6",
                        CellSource::Count("/spec/importV6"),
                        false,
                        "Number of rules for IPv6 routes that are learned",
                    ),
                ]
            }
        }
        Kind::HostEndpoint => {
            const {
                &[
                    NODE,
                    column(
                        "Interface",
                        CellSource::At("/spec/interfaceName"),
                        true,
                        "Interface that is protected",
                    ),
                    column(
                        "IPs",
                        CellSource::Joined("/spec/expectedIPs"),
                        true,
                        "Addresses that it is expected to have",
                    ),
                    column(
                        "Profiles",
                        CellSource::Joined("/spec/profiles"),
                        true,
                        "Profiles whose rules apply",
                    ),
                ]
            }
        }
        Kind::ClusterInformation => {
            const {
                &[
                    column(
                        "ClusterGUID",
                        CellSource::At("/spec/clusterGUID"),
                        false,
                        "Identity of the cluster",
                    ),
                    column(
                        "ClusterType",
                        CellSource::At("/spec/clusterType"),
                        false,
                        "Orchestrator and platform of the cluster",
                    ),
                    column(
                        "CalicoVersion",
                        CellSource::At("/spec/calicoVersion"),
                        false,
                        "Version of Calico",
                    ),
                    column(
                        "DatastoreReady",
                        CellSource::At("/spec/datastoreReady"),
                        false,
                        "Whether the datastore may be used",
                    ),
                ]
            }
        }
        Kind::CalicoNodeStatus => {
            const { &[NODE, column("Classes", CellSource::Joined("/spec/classes"), true, "Status classes")] }
        }
        Kind::IPAMConfiguration => {
            const {
                &[
                    column(
                        "StrictAffinity",
                        CellSource::Or("/spec/strictAffinity", "false"),
                        false,
                        "Whether nodes keep to their own blocks",
                    ),
                    column(
                        "AutoAllocateBlocks",
                        CellSource::Or("/spec/autoAllocateBlocks", "false"),
                        false,
                        "Whether nodes claim blocks automatically",
                    ),
                    column(
                        "MaxBlocksPerHost",
                        CellSource::Or("/spec/maxBlocksPerHost", "0"),
                        true,
                        "Maximum number of blocks of a node",
                    ),
                ]
            }
        }
        Kind::IPReservation => {
            const {
                &[column(
                    "CIDRs",
                    CellSource::Joined("/spec/reservedCIDRs"),
                    true,
                    "Addresses that are not assigned",
                )]
            }
        }
        Kind::BlockAffinity => {
            const {
                &[
                    column("CIDR", CellSource::At("/spec/cidr"), false, "Addresses of the block"),
                    NODE,
                    column(
                        "State",
                        CellSource::At("/spec/state"),
                        false,
                        "State of the node's claim on the block",
                    ),
                ]
            }
        }
        Kind::Profile => {
            const {
                &[column(
                    "Labels",
                    CellSource::Joined("/spec/labelsToApply"),
                    true,
                    "Labels that endpoints inherit from the profile",
                )]
            }
        }
        _ => &[],
    }
}
