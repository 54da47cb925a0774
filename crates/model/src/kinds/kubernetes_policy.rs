//! The parts of a Kubernetes NetworkPolicy, and their validation.

use crate::scalar::Port;
use crate::schema::forms;
use crate::validation::{FieldChecker, InclusiveRange};
use crate::{names, string_enum};
use ipnet::IpNet;
use std::collections::BTreeMap;

string_enum! {
    /// How a label is compared with values.
    pub enum LabelOperator { In, NotIn, Exists, DoesNotExist }
}

string_enum! {
    /// The protocols that Kubernetes supports.
    pub enum KubernetesProtocol { TCP, UDP, SCTP }
}

/// Maximum number of rules of a policy, and of ports and peers of a rule. The schema has the same bound:
/// without it, the estimated CEL cost would exceed the limit of Kubernetes.
pub(super) const MAX_KUBERNETES_ITEMS: usize = 1024;

api_types! {
    /// All labels and all expressions must match; an empty selector matches everything.
    pub struct LabelSelector {
        #[schemars(schema_with = "forms::labels")]
        pub match_labels: BTreeMap<String, String>,
        pub match_expressions: Vec<LabelRequirement>,
    }

    #[schemars(extend("required" = ["key", "operator"], "anyOf" = super::cel::label_requirement_choices()))]
    pub struct LabelRequirement {
        #[schemars(schema_with = "forms::label_key")]
        pub key: String = always,
        pub operator: LabelOperator = always,
        #[schemars(schema_with = "forms::label_values")]
        pub values: Vec<String>,
    }

    pub struct KubernetesIngressRule {
        #[schemars(length(max = 1024))]
        pub ports: Vec<KubernetesPort>,
        #[schemars(length(max = 1024))]
        pub from: Vec<KubernetesPeer>,
    }

    pub struct KubernetesEgressRule {
        #[schemars(length(max = 1024))]
        pub ports: Vec<KubernetesPort>,
        #[schemars(length(max = 1024))]
        pub to: Vec<KubernetesPeer>,
    }

    /// A port, or a range up to `endPort`; if omitted, every port of the protocol.
    #[schemars(extend("x-kubernetes-validations" = super::cel::kubernetes_port()))]
    pub struct KubernetesPort {
        pub protocol: Option<KubernetesProtocol>,
        #[schemars(schema_with = "forms::single_port")]
        pub port: Option<Port>,
        #[schemars(range(min = 1, max = 65535))]
        pub end_port: Option<i32>,
    }

    #[schemars(extend("x-kubernetes-validations" = super::cel::kubernetes_peer()))]
    pub struct KubernetesPeer {
        pub pod_selector: Option<LabelSelector>,
        pub namespace_selector: Option<LabelSelector>,
        pub ip_block: Option<IPBlock>,
    }

    #[schemars(extend("required" = ["cidr"]))]
    pub struct IPBlock {
        #[schemars(schema_with = "forms::network")]
        pub cidr: String = always,
        #[schemars(schema_with = "forms::networks")]
        pub except: Vec<String>,
    }
}

pub(super) fn check_label_selector(at: &FieldChecker<'_>, selector: &LabelSelector) {
    crate::meta::check_labels(&at.field("matchLabels"), &selector.match_labels);
    for (at, requirement) in at.field("matchExpressions").each(&selector.match_expressions) {
        at.field("key").report(&requirement.key, names::check_qualified(&requirement.key));
        at.field("operator").required_one_of(&requirement.operator);
        for (at, value) in at.field("values").each(&requirement.values) {
            at.report(value, names::check_label_value(value));
        }
        let listed = requirement.values.join(",");
        let values = at.field("values");
        match requirement.operator {
            LabelOperator::In | LabelOperator::NotIn => {
                values.ensure(!requirement.values.is_empty(), &listed, "must not be empty");
            }
            LabelOperator::Exists | LabelOperator::DoesNotExist => {
                values.ensure(requirement.values.is_empty(), &listed, "must be empty");
            }
            LabelOperator::Unknown(_) => (),
        }
    }
}

pub(super) fn check_ports(at: &FieldChecker<'_>, ports: &[KubernetesPort]) {
    at.max_items(ports, MAX_KUBERNETES_ITEMS);
    for (at, port) in at.each(ports) {
        if let Some(protocol) = &port.protocol {
            at.field("protocol").required_one_of(protocol);
        }
        match &port.port {
            Some(Port::Range(..)) => at.field("port").fail(
                port.port.as_ref().map_or_else(String::new, ToString::to_string),
                "must be a number or a name",
            ),
            Some(port) => at.field("port").port(port),
            None => (),
        }
        if let Some(end) = port.end_port {
            let at = at.field("endPort");
            match port.port {
                Some(Port::Number(first)) => at.within(end, InclusiveRange(i32::from(first), 65535)),
                _ => at.fail(end, "needs a port that is a number"),
            }
        }
    }
}

pub(super) fn check_peers(at: &FieldChecker<'_>, peers: &[KubernetesPeer]) {
    at.max_items(peers, MAX_KUBERNETES_ITEMS);
    for (at, peer) in at.each(peers) {
        if let Some(selector) = &peer.pod_selector {
            check_label_selector(&at.field("podSelector"), selector);
        }
        if let Some(selector) = &peer.namespace_selector {
            check_label_selector(&at.field("namespaceSelector"), selector);
        }
        if let Some(block) = &peer.ip_block {
            let alone = peer.pod_selector.is_none() && peer.namespace_selector.is_none();
            at.field("ipBlock").ensure(
                alone,
                &block.cidr,
                "cannot be combined with podSelector or namespaceSelector",
            );
            check_block(&at.field("ipBlock"), block);
        }
        let empty = *peer == KubernetesPeer::default();
        at.ensure(!empty, "{}", "must have podSelector, namespaceSelector or ipBlock");
    }
}

fn check_block(at: &FieldChecker<'_>, block: &IPBlock) {
    let cidr = at.field("cidr").masked_cidr(&block.cidr);
    for (at, except) in at.field("except").each(&block.except) {
        let Some(except) = at.masked_cidr(except) else { continue };
        let inside = cidr.is_none_or(|cidr: IpNet| cidr.contains(&except) && cidr != except);
        at.ensure(inside, except, format!("must lie inside {} and be smaller", block.cidr));
    }
}
