//! Conversion of pods to workload endpoints.

use super::core::{CorePod, PodContainer};
use super::{names, quantity};
use ipnet::IpNet;
use serde_json::{Value as Json, json};
use sha1::{Digest as _, Sha1};
use std::net::IpAddr;
use tortie_model::kinds::{IPNAT, WorkloadEndpoint, WorkloadEndpointPort, WorkloadEndpointSpec};
use tortie_model::names::WorkloadEndpointParts;
use tortie_model::scalar::Protocol;
use tortie_model::{Kind, StoreKey};

pub const POD_IP_ANNOTATION: &str = "cni.projectcalico.org/podIP";
pub const POD_IPS_ANNOTATION: &str = "cni.projectcalico.org/podIPs";
pub const CONTAINER_ID_ANNOTATION: &str = "cni.projectcalico.org/containerID";
const FLOATING_IPS_ANNOTATION: &str = "cni.projectcalico.org/floatingIPs";
const SOURCE_PREFIXES_ANNOTATION: &str = "cni.projectcalico.org/allowedSourcePrefixes";
const AWS_POD_IPS_ANNOTATION: &str = "vpc.amazonaws.com/pod-ips";
const NETWORK_STATUS_ANNOTATION: &str = "k8s.v1.cni.cncf.io/network-status";
/// Service account names of this length or longer get no label, as in Calico.
const ACCOUNT_LABEL_LENGTH_LIMIT: usize = 63;

/// A field of a pod from which no endpoint can be derived.
#[derive(Debug, thiserror::Error)]
pub enum PodFieldError {
    #[error("{field} = '{text}' is not an address")]
    Address { field: &'static str, text: String },
    #[error("annotation {name} = '{text}' is not a JSON list of texts: {source}")]
    List { name: &'static str, text: String, source: serde_json::Error },
    #[error("annotation {FLOATING_IPS_ANNOTATION}: '{0}' is not an address")]
    FloatingAddress(String),
}

/// Returns the endpoint of a pod; `None` for a pod in the host's network or without a node.
pub fn endpoint(
    pod: &CorePod,
    interface_prefix: &str,
) -> Option<(StoreKey, Result<WorkloadEndpoint, PodFieldError>)> {
    let CorePod { metadata: meta, spec, .. } = pod;
    if spec.host_network || spec.node_name.is_empty() {
        return None;
    }
    let parts = WorkloadEndpointParts {
        node: &spec.node_name,
        orchestrator: "k8s",
        pod: &meta.name,
        endpoint: "eth0",
        ..Default::default()
    };
    let name = parts.name().ok()?;
    let key = StoreKey::resource(Kind::WorkloadEndpoint, &meta.namespace, &name);
    Some((key, convert(pod, name, interface_prefix)))
}

fn convert(pod: &CorePod, name: String, interface_prefix: &str) -> Result<WorkloadEndpoint, PodFieldError> {
    let CorePod { metadata: meta, spec, .. } = pod;
    let addresses = if is_finished(pod) { Vec::new() } else { addresses(pod)? };
    let account = &spec.service_account_name;
    let mut metadata = meta.derived(name, &meta.namespace, meta.uid.clone());
    metadata.generate_name = meta.generate_name.clone();
    metadata.labels = meta.labels.clone();
    metadata.labels.insert("projectcalico.org/namespace".into(), meta.namespace.clone());
    metadata.labels.insert("projectcalico.org/orchestrator".into(), "k8s".into());
    if !account.is_empty() && account.len() < ACCOUNT_LABEL_LENGTH_LIMIT {
        metadata.labels.insert("projectcalico.org/serviceaccount".into(), account.clone());
    }
    if let Some(status) = meta.annotations.get(NETWORK_STATUS_ANNOTATION) {
        metadata.annotations.insert(NETWORK_STATUS_ANNOTATION.into(), status.clone());
    }
    let mut profiles = vec![format!("kns.{}", meta.namespace)];
    if !account.is_empty() {
        profiles.push(format!("ksa.{}.{account}", meta.namespace));
    }
    let spec = WorkloadEndpointSpec {
        orchestrator: "k8s".into(),
        node: spec.node_name.clone(),
        container_id: meta.annotations.get(CONTAINER_ID_ANNOTATION).cloned().unwrap_or_default(),
        pod: meta.name.clone(),
        endpoint: "eth0".into(),
        service_account_name: account.clone(),
        ip_nats: floating(pod, &addresses)?,
        ip_networks: addresses.into_iter().map(|address| IpNet::from(address).to_string()).collect(),
        profiles,
        interface_name: interface_name(interface_prefix, &meta.namespace, &meta.name),
        ports: spec.containers.iter().chain(&spec.init_containers).flat_map(ports).collect(),
        allow_spoofed_source_prefixes: source_prefixes(pod)?,
        qos_controls: quantity::controls(&meta.annotations),
        ..Default::default()
    };
    Ok(WorkloadEndpoint::new(metadata, spec))
}

/// Returns whether a pod has finished. It keeps its endpoint, but without addresses: another pod may have them already.
fn is_finished(pod: &CorePod) -> bool {
    let released = pod.metadata.deletion_timestamp.is_some()
        && [POD_IP_ANNOTATION, AWS_POD_IPS_ANNOTATION]
            .iter()
            .any(|name| pod.metadata.annotations.get(*name).is_some_and(String::is_empty));
    released || matches!(pod.status.phase.as_str(), "Failed" | "Succeeded" | "Completed")
}

fn addresses(pod: &CorePod) -> Result<Vec<IpAddr>, PodFieldError> {
    let mut annotations = [POD_IPS_ANNOTATION, POD_IP_ANNOTATION, AWS_POD_IPS_ANNOTATION]
        .into_iter()
        .filter_map(|name| Some((name, pod.metadata.annotations.get(name)?)));
    let (field, texts): (&'static str, Vec<&str>) = if !pod.status.pod_ips.is_empty() {
        ("status.podIPs", pod.status.pod_ips.iter().map(|pod_ip| pod_ip.ip.as_str()).collect())
    } else if !pod.status.pod_ip.is_empty() {
        ("status.podIP", vec![pod.status.pod_ip.as_str()])
    } else if let Some((name, list)) = annotations.find(|(_, list)| !list.is_empty()) {
        (name, list.split(',').collect())
    } else {
        return Ok(Vec::new());
    };
    let mut addresses = Vec::with_capacity(texts.len());
    for text in texts.into_iter().map(str::trim) {
        let address = text.parse::<IpNet>().map(|net| net.addr()).or_else(|_| text.parse());
        addresses.push(address.map_err(|_| PodFieldError::Address { field, text: text.to_owned() })?);
    }
    Ok(addresses)
}

fn list(pod: &CorePod, name: &'static str) -> Result<Vec<String>, PodFieldError> {
    match pod.metadata.annotations.get(name) {
        None => Ok(Vec::new()),
        Some(text) => serde_json::from_str(text).map_err(|source| PodFieldError::List {
            name,
            text: text.clone(),
            source,
        }),
    }
}

/// Maps each floating IP to the pod's own address of the same family.
fn floating(pod: &CorePod, addresses: &[IpAddr]) -> Result<Vec<IPNAT>, PodFieldError> {
    if addresses.is_empty() {
        return Ok(Vec::new());
    }
    let mut nats = Vec::new();
    for external_ip in list(pod, FLOATING_IPS_ANNOTATION)? {
        let Ok(external) = external_ip.parse::<IpAddr>() else {
            return Err(PodFieldError::FloatingAddress(external_ip));
        };
        if let Some(own) = addresses.iter().find(|own| own.is_ipv4() == external.is_ipv4()) {
            nats.push(IPNAT { internal_ip: own.to_string(), external_ip });
        }
    }
    Ok(nats)
}

/// Returns the allowed source prefixes. Invalid ones are dropped: allowing less is safe.
fn source_prefixes(pod: &CorePod) -> Result<Vec<String>, PodFieldError> {
    let prefixes = list(pod, SOURCE_PREFIXES_ANNOTATION)?;
    Ok(prefixes.iter().filter_map(|text| Some(text.parse::<IpNet>().ok()?.trunc().to_string())).collect())
}

fn ports(container: &PodContainer) -> impl Iterator<Item = WorkloadEndpointPort> {
    container.ports.iter().filter_map(|port| {
        let protocol = match port.protocol.to_uppercase().as_str() {
            "" | "TCP" => "TCP",
            "UDP" => "UDP",
            "SCTP" => "SCTP",
            _ => return None,
        };
        let wanted = port.container_port != 0 && (!port.name.is_empty() || port.host_port != 0);
        wanted.then(|| WorkloadEndpointPort {
            name: port.name.clone(),
            protocol: Protocol::Name(protocol.to_owned()),
            port: port.container_port,
            host_port: port.host_port,
            host_ip: port.host_ip.clone(),
        })
    })
}

pub fn interface_name(prefix: &str, namespace: &str, pod: &str) -> String {
    let hash = names::hex(&Sha1::digest(format!("{namespace}.{pod}")));
    format!("{prefix}{}", hash.get(..11).unwrap_or_default())
}

/// Returns the patch that stores the endpoint in the pod. The UID prevents patching a later pod of the same name.
pub fn patch(uid: &str, networks: &[String], container_id: &str) -> Json {
    let first = networks.first().map(String::as_str).unwrap_or_default();
    let annotations = json!({POD_IP_ANNOTATION: first, POD_IPS_ANNOTATION: networks.join(","), CONTAINER_ID_ANNOTATION: container_id});
    patch_of(uid, annotations)
}

/// Returns the patch that removes the addresses of an endpoint, conditional on the resource version if given.
pub fn removal(uid: &str, resource_version: Option<&str>) -> Json {
    let mut patch = patch_of(uid, json!({POD_IP_ANNOTATION: "", POD_IPS_ANNOTATION: ""}));
    if let Some(version) = resource_version {
        patch["metadata"]["resourceVersion"] = version.into();
    }
    patch
}

fn patch_of(uid: &str, annotations: Json) -> Json {
    let mut metadata = json!({"annotations": annotations});
    if !uid.is_empty() {
        metadata["uid"] = uid.into();
    }
    json!({"metadata": metadata})
}

#[cfg(test)]
mod tests;
