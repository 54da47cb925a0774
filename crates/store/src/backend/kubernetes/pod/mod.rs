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

/// Returns the endpoint of a pod; `None` for a pod in the host's network or without a node.
pub fn endpoint(
    pod: &CorePod,
    interface_prefix: &str,
) -> Option<(StoreKey, Result<WorkloadEndpoint, String>)> {
    let (meta, spec) = (&pod.metadata, &pod.spec);
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

fn convert(pod: &CorePod, name: String, interface_prefix: &str) -> Result<WorkloadEndpoint, String> {
    let (meta, spec) = (&pod.metadata, &pod.spec);
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
    let emptied = |name: &str| pod.metadata.annotations.get(name).is_some_and(String::is_empty);
    let released = pod.metadata.deletion_timestamp.is_some()
        && (emptied(POD_IP_ANNOTATION) || emptied(AWS_POD_IPS_ANNOTATION));
    released || matches!(pod.status.phase.as_str(), "Failed" | "Succeeded" | "Completed")
}

fn addresses(pod: &CorePod) -> Result<Vec<IpAddr>, String> {
    let annotation = |name: &'static str| {
        pod.metadata.annotations.get(name).filter(|value| !value.is_empty()).map(|value| (name, value))
    };
    let (source, texts): (&str, Vec<&str>) = if !pod.status.pod_ips.is_empty() {
        ("status.podIPs", pod.status.pod_ips.iter().map(|pod_ip| pod_ip.ip.as_str()).collect())
    } else if !pod.status.pod_ip.is_empty() {
        ("status.podIP", vec![pod.status.pod_ip.as_str()])
    } else if let Some((name, list)) = annotation(POD_IPS_ANNOTATION)
        .or(annotation(POD_IP_ANNOTATION))
        .or(annotation(AWS_POD_IPS_ANNOTATION))
    {
        (name, list.split(',').collect())
    } else {
        return Ok(Vec::new());
    };
    let parse = |text: &str| {
        let text = text.trim();
        let net = text.parse::<IpNet>().map(|net| net.addr());
        net.or_else(|_| text.parse()).map_err(|_| format!("{source} = '{text}' is not an address"))
    };
    texts.into_iter().map(parse).collect()
}

fn list(pod: &CorePod, name: &str) -> Result<Vec<String>, String> {
    match pod.metadata.annotations.get(name) {
        None => Ok(Vec::new()),
        Some(text) => serde_json::from_str(text)
            .map_err(|error| format!("annotation {name} = '{text}' is not a JSON list of texts: {error}")),
    }
}

/// Maps each floating IP to the pod's own address of the same family.
fn floating(pod: &CorePod, addresses: &[IpAddr]) -> Result<Vec<IPNAT>, String> {
    if addresses.is_empty() {
        return Ok(Vec::new());
    }
    let mut nats = Vec::new();
    for external_ip in list(pod, FLOATING_IPS_ANNOTATION)? {
        let external: IpAddr = external_ip.parse().map_err(|_| {
            format!("annotation {FLOATING_IPS_ANNOTATION}: '{external_ip}' is not an address")
        })?;
        if let Some(own) = addresses.iter().find(|own| own.is_ipv4() == external.is_ipv4()) {
            nats.push(IPNAT { internal_ip: own.to_string(), external_ip });
        }
    }
    Ok(nats)
}

/// Returns the allowed source prefixes. Invalid ones are dropped: allowing less is safe.
fn source_prefixes(pod: &CorePod) -> Result<Vec<String>, String> {
    let masked = |text: String| Some(text.parse::<IpNet>().ok()?.trunc().to_string());
    Ok(list(pod, SOURCE_PREFIXES_ANNOTATION)?.into_iter().filter_map(masked).collect())
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
