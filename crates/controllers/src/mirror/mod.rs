//! Mirrors objects of Kubernetes to a datastore that is not Kubernetes: profiles of namespaces and service accounts,
//! policies, labels of endpoints and nodes.
//!
//! Pure: objects of Kubernetes and of the datastore in, writes out. Every difference is corrected, whatever caused
//! it.

use crate::absence::{AbsenceClaim, AbsenceSubject, ReferenceCounts, SubjectClass};
use crate::write::ObjectWrite;
use std::collections::{BTreeMap, BTreeSet};
use tortie_model::kinds::{Node, WorkloadEndpoint};
use tortie_model::{Kind, Resource, StoreKey, StoreValue};

/// Selection of the object types to mirror.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MirrorSelection {
    pub namespaces: bool,
    pub service_accounts: bool,
    pub policies: bool,
    pub endpoints: bool,
    pub nodes: bool,
    pub node_labels: bool,
}

#[derive(Debug, Default)]
pub struct KubernetesMirror {
    kubernetes: BTreeMap<StoreKey, Resource>,
    datastore: BTreeMap<StoreKey, Resource>,
}

/// Annotation of a node with the labels that came from Kubernetes.
const KUBE_LABELS_ANNOTATION: &str = "projectcalico.org/kube-labels";
const ORCHESTRATOR: &str = "k8s";

impl KubernetesMirror {
    /// Stores the object as the datastore would return it, so that both sides can be compared.
    pub fn put_kubernetes(&mut self, key: StoreKey, resource: Resource) {
        match StoreValue::decode(&key, &StoreValue::Resource(resource).encode()) {
            Ok(StoreValue::Resource(resource)) => _ = self.kubernetes.insert(key, resource),
            _ => _ = self.kubernetes.remove(&key),
        }
    }

    pub fn remove_kubernetes(&mut self, key: &StoreKey) {
        self.kubernetes.remove(key);
    }

    pub fn put_datastore(&mut self, key: StoreKey, resource: Resource) {
        self.datastore.insert(key, resource);
    }

    pub fn remove_datastore(&mut self, key: &StoreKey) {
        self.datastore.remove(key);
    }

    pub fn writes(&self, parts: MirrorSelection) -> Vec<AbsenceClaim<ObjectWrite>> {
        let keys: BTreeSet<&StoreKey> = self.kubernetes.keys().chain(self.datastore.keys()).collect();
        let mut writes = Vec::new();
        for key in keys.into_iter().filter(|key| parts.copies(key)) {
            writes.extend(copy(key, self.kubernetes.get(key), self.datastore.get(key)));
        }
        if parts.endpoints {
            let endpoints = self.datastore.iter().filter_map(|(key, found)| self.endpoint(key, found));
            writes.extend(endpoints.map(AbsenceClaim::certain));
        }
        if parts.nodes {
            writes.extend(self.datastore.values().filter_map(|found| self.node(found, parts.node_labels)));
        }
        writes
    }

    /// Counts the objects of the datastore that are derived from Kubernetes.
    pub fn references(&self, parts: MirrorSelection) -> ReferenceCounts {
        let mut references = ReferenceCounts::new();
        for (key, found) in &self.datastore {
            let is_node = matches!(found, Resource::Node(node) if find_kubernetes_name(node).is_some());
            if parts.copies(key) || is_node {
                *references.entry(SubjectClass::from(key)).or_default() += 1;
            }
        }
        references
    }

    /// Updates labels and service account of an endpoint created by the CNI plugin to those of its pod.
    fn endpoint(&self, key: &StoreKey, found: &Resource) -> Option<ObjectWrite> {
        let Resource::WorkloadEndpoint(found) = found else { return None };
        let Some(Resource::WorkloadEndpoint(pod)) = self.kubernetes.get(key) else { return None };
        let mut wanted: WorkloadEndpoint = (**found).clone();
        wanted.metadata.labels = pod.metadata.labels.clone();
        wanted.spec.service_account_name = pod.spec.service_account_name.clone();
        (wanted != **found).then(|| ObjectWrite::Update(Resource::from(wanted)))
    }

    /// Deletes a node that Kubernetes no longer has, or updates its Kubernetes labels and keeps its own.
    fn node(&self, found: &Resource, labels: bool) -> Option<AbsenceClaim<ObjectWrite>> {
        let Resource::Node(node) = found else { return None };
        let name = find_kubernetes_name(node)?;
        let Some(Resource::Node(known)) = self.kubernetes.get(&StoreKey::resource(Kind::Node, "", name))
        else {
            let write = ObjectWrite::delete(Kind::Node, &node.metadata);
            return Some(AbsenceClaim::if_absent(write, AbsenceSubject::node(name)));
        };
        let wanted = with_labels(node, &known.metadata.labels);
        (labels && wanted != **node)
            .then(|| AbsenceClaim::certain(ObjectWrite::Update(Resource::from(wanted))))
    }

    /// Returns the Kubernetes name of each node of the datastore; empty for nodes that are not from Kubernetes.
    pub fn kubernetes_names(&self) -> BTreeMap<String, String> {
        let names = self.datastore.values().filter_map(|resource| {
            let Resource::Node(node) = resource else { return None };
            Some((node.metadata.name.clone(), find_kubernetes_name(node).unwrap_or_default().to_owned()))
        });
        names.collect()
    }
}

impl MirrorSelection {
    /// Returns whether the whole object is derived from Kubernetes and managed by this controller only.
    fn copies(self, key: &StoreKey) -> bool {
        let StoreKey::Resource { kind, name, .. } = key else { return false };
        match kind {
            Kind::Profile if name.starts_with("kns.") => self.namespaces,
            Kind::Profile if name.starts_with("ksa.") => self.service_accounts,
            Kind::NetworkPolicy => self.policies && tortie_model::kubernetes::is_derived_policy(*kind, name),
            _ => false,
        }
    }
}

/// Returns the Kubernetes name of a node, if it is a Kubernetes node.
fn find_kubernetes_name(node: &Node) -> Option<&str> {
    let reference = node.spec.orch_refs.iter().find(|reference| reference.orchestrator == ORCHESTRATOR)?;
    Some(reference.node_name.as_str()).filter(|name| !name.is_empty())
}

/// Returns the write that makes `found` equal to `wanted`.
fn copy(
    key: &StoreKey,
    wanted: Option<&Resource>,
    found: Option<&Resource>,
) -> Option<AbsenceClaim<ObjectWrite>> {
    match (wanted, found) {
        (None, None) => None,
        (None, Some(found)) => {
            let write = ObjectWrite::delete(found.kind(), found.metadata());
            Some(AbsenceClaim::if_absent(write, AbsenceSubject::kubernetes(key.clone())))
        }
        (Some(wanted), None) => {
            let mut new = wanted.clone();
            new.metadata_mut().resource_version.clear();
            Some(AbsenceClaim::certain(ObjectWrite::Create(new)))
        }
        (Some(wanted), Some(found)) => {
            let mut new = wanted.clone();
            // Keep the metadata that only the datastore has.
            *new.metadata_mut() = found.metadata().clone();
            new.metadata_mut().labels = wanted.metadata().labels.clone();
            (new != *found).then(|| AbsenceClaim::certain(ObjectWrite::Update(new)))
        }
    }
}

fn with_labels(node: &Node, wanted: &BTreeMap<String, String>) -> Node {
    let mut changed = node.clone();
    let meta = &mut changed.metadata;
    let before: BTreeMap<String, String> = meta
        .annotations
        .get(KUBE_LABELS_ANNOTATION)
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default();
    meta.labels.retain(|name, _| !before.contains_key(name));
    meta.labels.extend(wanted.clone());
    if before != *wanted {
        let text = serde_json::to_string(wanted).unwrap_or_default();
        meta.annotations.insert(KUBE_LABELS_ANNOTATION.to_owned(), text);
    }
    changed
}

#[cfg(test)]
mod tests;
