//! The table columns that Calico's tools show for each kind.

use CellSource::{At, Count, Joined, Or, PeerScope, PodSelector};

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

const fn column(name: &'static str, cell: CellSource, description: &'static str) -> TableColumn {
    TableColumn { name, cell, wide: false, description }
}

const fn wide_column(name: &'static str, cell: CellSource, description: &'static str) -> TableColumn {
    TableColumn { wide: true, ..column(name, cell, description) }
}

const NODE: TableColumn = column("Node", At("/spec/node"), "Node that the object belongs to");

const POLICY: &[TableColumn] = &[
    column("Tier", Or("/spec/tier", "default"), "Tier that the policy belongs to"),
    wide_column("Order", At("/spec/order"), "Order among the policies of the tier: lower first"),
    wide_column("Selector", At("/spec/selector"), "Endpoints that the policy applies to"),
];
const NETWORK_SET: &[TableColumn] = &[wide_column("Nets", Joined("/spec/nets"), "Networks of the set")];

/// The columns of each kind; a kind that is not listed has none.
#[rustfmt::skip]
const COLUMNS: &[(Kind, &[TableColumn])] = &[
    (Kind::GlobalNetworkPolicy, POLICY),
    (Kind::NetworkPolicy, POLICY),
    (Kind::StagedGlobalNetworkPolicy, POLICY),
    (Kind::StagedNetworkPolicy, POLICY),
    (Kind::GlobalNetworkSet, NETWORK_SET),
    (Kind::NetworkSet, NETWORK_SET),
    (Kind::StagedKubernetesNetworkPolicy, &[wide_column("Pod-Selector", PodSelector, "Pods that the policy applies to")]),
    (Kind::Tier, &[
        column("Order", At("/spec/order"), "Order among the tiers: lower first"),
        wide_column("Default-Action", At("/spec/defaultAction"), "Action for traffic that no rule matches"),
    ]),
    (Kind::IPPool, &[
        column("CIDR", At("/spec/cidr"), "Addresses of the pool"),
        column("Selector", Or("/spec/nodeSelector", "all()"), "Nodes that may use the pool"),
        wide_column("NAT", Or("/spec/natOutgoing", "false"), "Whether traffic that leaves the pools is masqueraded"),
        wide_column("IPIPMode", Or("/spec/ipipMode", "Never"), "When traffic between nodes is encapsulated in IP-in-IP"),
        wide_column("VXLANMode", Or("/spec/vxlanMode", "Never"), "When traffic between nodes is encapsulated in VXLAN"),
        wide_column("Disabled", Or("/spec/disabled", "false"), "Whether no more addresses are assigned from the pool"),
        wide_column("DisableBGPExport", Or("/spec/disableBGPExport", "false"), "Whether the pool is not advertised over BGP"),
        wide_column("AssignmentMode", Or("/spec/assignmentMode", "Automatic"), "Whether addresses are assigned without an explicit request"),
    ]),
    (Kind::BGPConfiguration, &[
        column("LogSeverity", At("/spec/logSeverityScreen"), "Lowest severity that is logged"),
        column("MeshEnabled", At("/spec/nodeToNodeMeshEnabled"), "Whether every node peers with every other"),
        column("ASNumber", At("/spec/asNumber"), "AS number of nodes that specify none"),
    ]),
    (Kind::BGPPeer, &[
        column("PeerIP", At("/spec/peerIP"), "Address of the peer"),
        column("Node", PeerScope, "Nodes that peer with it"),
        column("ASN", At("/spec/asNumber"), "AS number of the peer"),
    ]),
    (Kind::BGPFilter, &[
        column("ExportV4", Count("/spec/exportV4"), "Number of rules for IPv4 routes that are advertised"),
        column("ImportV4", Count("/spec/importV4"), "Number of rules for IPv4 routes that are learned"),
        column("ExportV6", Count("/spec/exportV6"), "Number of rules for IPv6 routes that are advertised"),
        column("ImportV6", Count("/spec/importV6"), "Number of rules for IPv6 routes that are learned"),
    ]),
    (Kind::HostEndpoint, &[
        NODE,
        wide_column("Interface", At("/spec/interfaceName"), "Interface that is protected"),
        wide_column("IPs", Joined("/spec/expectedIPs"), "Addresses that it is expected to have"),
        wide_column("Profiles", Joined("/spec/profiles"), "Profiles whose rules apply"),
    ]),
    (Kind::ClusterInformation, &[
        column("ClusterGUID", At("/spec/clusterGUID"), "Identity of the cluster"),
        column("ClusterType", At("/spec/clusterType"), "Orchestrator and platform of the cluster"),
        column("CalicoVersion", At("/spec/calicoVersion"), "Version of Calico"),
        column("DatastoreReady", At("/spec/datastoreReady"), "Whether the datastore may be used"),
    ]),
    (Kind::CalicoNodeStatus, &[NODE, wide_column("Classes", Joined("/spec/classes"), "Status classes")]),
    (Kind::IPAMConfiguration, &[
        column("StrictAffinity", Or("/spec/strictAffinity", "false"), "Whether nodes keep to their own blocks"),
        column("AutoAllocateBlocks", Or("/spec/autoAllocateBlocks", "false"), "Whether nodes claim blocks automatically"),
        wide_column("MaxBlocksPerHost", Or("/spec/maxBlocksPerHost", "0"), "Maximum number of blocks of a node"),
    ]),
    (Kind::IPReservation, &[wide_column("CIDRs", Joined("/spec/reservedCIDRs"), "Addresses that are not assigned")]),
    (Kind::BlockAffinity, &[
        column("CIDR", At("/spec/cidr"), "Addresses of the block"),
        NODE,
        column("State", At("/spec/state"), "State of the node's claim on the block"),
    ]),
    (Kind::Profile, &[wide_column("Labels", Joined("/spec/labelsToApply"), "Labels that endpoints inherit from the profile")]),
];

/// Returns the columns of a kind between the name and the age.
pub fn columns(kind: Kind) -> &'static [TableColumn] {
    COLUMNS.iter().find(|(known, _)| *known == kind).map_or(&[], |(_, columns)| columns)
}
