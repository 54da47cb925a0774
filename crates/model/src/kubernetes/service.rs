//! Services: their addresses, and the fields that decide which addresses nodes may advertise.

use crate::scalar::Protocol;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Prefix of Calico's annotations on a service.
const CALICO_ANNOTATION_PREFIX: &str = "projectcalico.org/";

/// The part of a service that routes and load balancers need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KubernetesService {
    pub uid: String,
    pub form: ServiceType,
    pub traffic: ExternalTraffic,
    /// Empty for a headless service.
    pub cluster_ips: Vec<IpAddr>,
    pub external_ips: Vec<IpAddr>,
    /// The requested address.
    pub load_balancer_ip: Option<IpAddr>,
    /// The assigned addresses from the status.
    pub ingress_ips: Vec<IpAddr>,
    /// 4, 6 or both; the first is preferred.
    pub ip_versions: Vec<u8>,
    pub load_balancer_class: Option<String>,
    pub ports: Vec<ForwardedPort>,
    /// Whether connections of one client go to the same endpoint (`sessionAffinity: ClientIP`).
    pub has_session_affinity: bool,
    /// Whether traffic from pods goes only to endpoints on their node (`internalTrafficPolicy: Local`).
    pub is_internally_local: bool,
    /// Only annotations with Calico's prefix.
    pub annotations: BTreeMap<String, String>,
}

/// A port of a service and the port of its endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForwardedPort {
    pub protocol: u8,
    pub port: u16,
    pub target: TargetPort,
}

/// A port of a pod by number or by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TargetPort {
    Number(u16),
    Name(String),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServiceType {
    ClusterIP,
    NodePort,
    LoadBalancer,
    /// ExternalName, or an unknown type.
    #[default]
    Other,
}

/// How nodes route traffic from outside the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExternalTraffic {
    /// To any endpoint.
    Cluster,
    /// To endpoints on the receiving node only.
    Local,
    /// Not specified.
    #[default]
    Unset,
}

/// The fields of a Service that are read.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RawService {
    spec: RawServiceSpec,
    status: RawServiceStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawServiceSpec {
    r#type: String,
    #[serde(rename = "clusterIP")]
    cluster_ip: String,
    #[serde(rename = "clusterIPs")]
    cluster_ips: Option<Vec<String>>,
    #[serde(rename = "externalIPs")]
    external_ips: Option<Vec<String>>,
    #[serde(rename = "loadBalancerIP")]
    load_balancer_ip: String,
    load_balancer_class: Option<String>,
    external_traffic_policy: String,
    ip_families: Option<Vec<String>>,
    ports: Option<Vec<RawServicePort>>,
    session_affinity: String,
    internal_traffic_policy: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawServicePort {
    protocol: String,
    port: u16,
    target_port: Option<TargetPort>,
}

impl RawServicePort {
    /// Converts a port; returns `None` for an unknown protocol.
    fn read(&self) -> Option<ForwardedPort> {
        let protocol = if self.protocol.is_empty() { "TCP" } else { &self.protocol };
        let target = match &self.target_port {
            // kube-apiserver sets the target port; 0 and absence mean the port of the service.
            None | Some(TargetPort::Number(0)) => TargetPort::Number(self.port),
            Some(target) => target.clone(),
        };
        Some(ForwardedPort { protocol: Protocol::from(protocol).number()?, port: self.port, target })
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawServiceStatus {
    load_balancer: RawLoadBalancer,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct RawLoadBalancer {
    ingress: Option<Vec<RawIngress>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct RawIngress {
    ip: String,
}

impl KubernetesService {
    /// Returns the addresses that were assigned to the service. `externalIPs` are excluded: any user who may
    /// create a service can put arbitrary addresses there.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.cluster_ips.iter().chain(&self.ingress_ips).copied()
    }

    pub fn read(uid: &str, annotations: &BTreeMap<String, String>, raw: &RawService) -> KubernetesService {
        let spec = &raw.spec;
        // Older API servers set only `clusterIP`.
        let cluster: Vec<&String> = match spec.cluster_ips.as_deref() {
            None | Some([]) => vec![&spec.cluster_ip],
            Some(several) => several.iter().collect(),
        };
        let ingress = raw.status.load_balancer.ingress.iter().flatten();
        KubernetesService {
            uid: uid.to_owned(),
            form: ServiceType::read(&spec.r#type),
            traffic: ExternalTraffic::read(&spec.external_traffic_policy),
            cluster_ips: cluster.into_iter().filter_map(|text| text.parse().ok()).collect(),
            external_ips: spec.external_ips.iter().flatten().filter_map(|text| text.parse().ok()).collect(),
            load_balancer_ip: spec.load_balancer_ip.parse().ok(),
            ingress_ips: ingress.filter_map(|ingress| ingress.ip.parse().ok()).collect(),
            ip_versions: spec.ip_families.iter().flatten().filter_map(|family| ip_version(family)).collect(),
            load_balancer_class: spec.load_balancer_class.clone(),
            ports: spec.ports.iter().flatten().filter_map(RawServicePort::read).collect(),
            has_session_affinity: spec.session_affinity == "ClientIP",
            is_internally_local: spec.internal_traffic_policy.as_deref() == Some("Local"),
            annotations: annotations
                .iter()
                .filter(|(name, _)| name.starts_with(CALICO_ANNOTATION_PREFIX))
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
        }
    }
}

impl ServiceType {
    fn read(text: &str) -> ServiceType {
        match text {
            "" | "ClusterIP" => ServiceType::ClusterIP,
            "NodePort" => ServiceType::NodePort,
            "LoadBalancer" => ServiceType::LoadBalancer,
            _ => ServiceType::Other,
        }
    }
}

impl ExternalTraffic {
    fn read(text: &str) -> ExternalTraffic {
        match text {
            "Cluster" => ExternalTraffic::Cluster,
            "Local" => ExternalTraffic::Local,
            _ => ExternalTraffic::Unset,
        }
    }
}

/// Returns the IP version of an address family or address type.
pub(super) fn ip_version(family: &str) -> Option<u8> {
    match family {
        "IPv4" => Some(4),
        "IPv6" => Some(6),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value as Json, json};

    fn read(service: Json) -> KubernetesService {
        let annotations = BTreeMap::from(
            [("projectcalico.org/ipv4pools", "[\"p\"]"), ("example.org/x", "y")]
                .map(|(name, value)| (name.to_owned(), value.to_owned())),
        );
        KubernetesService::read("u", &annotations, &serde_json::from_value(service).unwrap())
    }

    #[test]
    fn a_service_is_read() {
        let service = read(json!({
            "spec": {"type": "LoadBalancer", "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7", "fd96::7"],
                "externalIPs": ["192.0.2.7", "nonsense"], "loadBalancerIP": "198.51.100.7", "loadBalancerClass": "calico",
                "externalTrafficPolicy": "Local", "ipFamilies": ["IPv4", "IPv6"]},
            "status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.7"}, {"hostname": "x.example"}]}},
        }));
        let addresses =
            |texts: &[&str]| -> Vec<IpAddr> { texts.iter().map(|text| text.parse().unwrap()).collect() };
        assert_eq!((service.form, service.traffic), (ServiceType::LoadBalancer, ExternalTraffic::Local));
        assert_eq!(service.cluster_ips, addresses(&["10.96.0.7", "fd96::7"]));
        assert_eq!(service.external_ips, addresses(&["192.0.2.7"]));
        assert_eq!(service.ingress_ips, addresses(&["198.51.100.7"]));
        assert_eq!(service.load_balancer_ip, Some("198.51.100.7".parse().unwrap()));
        assert_eq!(service.ip_versions, [4, 6]);
        assert_eq!(service.annotations.keys().collect::<Vec<_>>(), ["projectcalico.org/ipv4pools"]);
        let written = serde_json::to_string(&service).unwrap();
        assert_eq!(serde_json::from_str::<KubernetesService>(&written).unwrap(), service);
    }

    #[test]
    fn ports_and_local_policies_are_read() {
        let service = read(
            json!({"spec": {"sessionAffinity": "ClientIP", "internalTrafficPolicy": "Local", "ports": [
            {"port": 80, "targetPort": "http"}, {"protocol": "UDP", "port": 53, "targetPort": 5353}, {"port": 443}]}}),
        );
        assert!(service.has_session_affinity && service.is_internally_local);
        let port = |protocol, port, target| ForwardedPort { protocol, port, target };
        assert_eq!(
            service.ports,
            [
                port(6, 80, TargetPort::Name("http".into())),
                port(17, 53, TargetPort::Number(5353)),
                port(6, 443, TargetPort::Number(443))
            ]
        );
        let written = serde_json::to_string(&service).unwrap();
        assert_eq!(serde_json::from_str::<KubernetesService>(&written).unwrap(), service);
    }

    #[test]
    fn headless_and_old_services_are_read() {
        assert_eq!(
            read(json!({"spec": {"clusterIP": "None", "clusterIPs": ["None"]}})).cluster_ips,
            Vec::<IpAddr>::new()
        );
        assert_eq!(read(json!({"spec": {"clusterIP": "10.96.0.9"}})).cluster_ips.len(), 1);
        assert_eq!(read(json!({"spec": {"type": "ExternalName"}})).form, ServiceType::Other);
        assert_eq!(read(json!({})).form, ServiceType::ClusterIP);
    }
}
