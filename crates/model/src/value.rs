//! Values of datastore entries and their encoding.
//!
//! Handles the differences between an object as users see it and its stored form: the revision and self link
//! are never stored, policies store their name in an annotation, and objects of older versions lack fields
//! that are always set today.

use crate::dhcp::DhcpSubnet;
use crate::ipam::{AddressBlock, AddressHandle, BlockAffinity, IpamConfig};
use crate::kinds::{DEFAULT_TIER, TIER_LABEL};
use crate::kubernetes::{EndpointSlice, KubernetesService};
use crate::object::DecodeError;
use crate::status::{EndpointStatus, FelixHeartbeat};
use crate::{Kind, Resource, StoreKey};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value as Json, json};

/// Annotation with the name of a policy as the user gave it, which may differ from the name in its key.
const NAME_ANNOTATION: &str = "projectcalico.org/metadata";

/// The value of any datastore entry.
#[derive(Clone, Debug, PartialEq)]
pub enum StoreValue {
    Resource(Resource),
    Block(AddressBlock),
    BlockAffinity(BlockAffinity),
    Handle(AddressHandle),
    IpamConfig(IpamConfig),
    Heartbeat(FelixHeartbeat),
    EndpointStatus(EndpointStatus),
    EndpointSlice(EndpointSlice),
    /// Boxed, because it would make every value larger.
    Service(Box<KubernetesService>),
    DhcpSubnet(Box<DhcpSubnet>),
    /// Uninterpreted bytes, under keys that are read but not decoded.
    Raw(Vec<u8>),
}

/// Reasons why bytes cannot be decoded as the value of their key.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ValueError {
    #[error("not the JSON expected here: {0}")]
    Json(String),
    #[error(transparent)]
    Resource(#[from] DecodeError),
}

impl StoreValue {
    /// Decodes the bytes stored under a key.
    pub fn decode(key: &StoreKey, bytes: &[u8]) -> Result<StoreValue, ValueError> {
        Ok(match key {
            StoreKey::Resource { kind, namespace, name } => {
                StoreValue::Resource(decode_resource(*kind, namespace, name, read(bytes)?)?)
            }
            StoreKey::Block { .. } => StoreValue::Block(read(bytes)?),
            StoreKey::BlockAffinity { .. } if bytes.is_empty() => {
                StoreValue::BlockAffinity(BlockAffinity::default())
            }
            StoreKey::BlockAffinity { .. } => StoreValue::BlockAffinity(read(bytes)?),
            StoreKey::Handle { .. } => StoreValue::Handle(read(bytes)?),
            StoreKey::IpamConfig => StoreValue::IpamConfig(read(bytes)?),
            StoreKey::FelixStatus { .. } | StoreKey::FelixLastStatus { .. } => {
                StoreValue::Heartbeat(read(bytes)?)
            }
            StoreKey::WorkloadEndpointStatus(_) | StoreKey::HostEndpointStatus { .. } => {
                StoreValue::EndpointStatus(read(bytes)?)
            }
            StoreKey::EndpointSlice { .. } => StoreValue::EndpointSlice(read(bytes)?),
            StoreKey::Service { .. } => StoreValue::Service(Box::new(read(bytes)?)),
            StoreKey::DhcpSubnet { .. } | StoreKey::LegacyDhcpSubnet { .. } => {
                StoreValue::DhcpSubnet(Box::new(read(bytes)?))
            }
            StoreKey::IpamHost { .. }
            | StoreKey::CompactRevision
            | StoreKey::NeutronElection { .. }
            | StoreKey::LegacyNeutronElection => StoreValue::Raw(bytes.to_vec()),
        })
    }

    /// Encodes the value for the store.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            StoreValue::Resource(resource) => write(&encode_resource(resource)),
            StoreValue::Block(block) => write(block),
            StoreValue::BlockAffinity(affinity) => write(affinity),
            StoreValue::Handle(handle) => write(handle),
            StoreValue::IpamConfig(config) => write(config),
            StoreValue::Heartbeat(heartbeat) => write(heartbeat),
            StoreValue::EndpointStatus(status) => write(status),
            StoreValue::EndpointSlice(slice) => write(slice),
            StoreValue::Service(service) => write(service),
            StoreValue::DhcpSubnet(subnet) => write(subnet),
            StoreValue::Raw(bytes) => bytes.clone(),
        }
    }
}

impl From<Resource> for StoreValue {
    fn from(resource: Resource) -> StoreValue {
        StoreValue::Resource(resource)
    }
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ValueError> {
    serde_json::from_slice(bytes)
        .or_else(|error| last_of_each_field(bytes).ok_or_else(|| ValueError::Json(error.to_string())))
}

/// Decodes JSON with duplicate fields, which serde's derived deserialisers reject: the last occurrence wins,
/// as in Go.
fn last_of_each_field<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let json: Json = serde_json::from_slice(bytes).ok()?;
    serde_json::from_value(json).ok()
}

/// Encodes JSON with the HTML-safe escapes of Go's encoder, as Calico stores it.
fn write(value: &impl Serialize) -> Vec<u8> {
    let plain = serde_json::to_string(value).unwrap_or_default();
    let mut escaped = String::with_capacity(plain.len());
    for c in plain.chars() {
        match c {
            '<' => escaped.push_str("\\u003c"),
            '>' => escaped.push_str("\\u003e"),
            '&' => escaped.push_str("\\u0026"),
            '\u{2028}' => escaped.push_str("\\u2028"),
            '\u{2029}' => escaped.push_str("\\u2029"),
            _ => escaped.push(c),
        }
    }
    escaped.into_bytes()
}

/// Returns whether the stored name of objects of a kind may differ from the name that the user gave.
pub fn is_renamed(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::NetworkPolicy
            | Kind::GlobalNetworkPolicy
            | Kind::StagedNetworkPolicy
            | Kind::StagedGlobalNetworkPolicy
    )
}

fn encode_resource(resource: &Resource) -> Json {
    let mut resource = resource.clone();
    let kind = resource.kind();
    let meta = resource.metadata_mut();
    meta.resource_version.clear();
    meta.self_link.clear();
    if is_renamed(kind) {
        meta.annotations.insert(NAME_ANNOTATION.to_owned(), json!({ "name": meta.name }).to_string());
    }
    let mut stored = resource.to_value();
    if kind == Kind::BlockAffinity
        && let Some(Json::Object(spec)) = stored.get_mut("spec")
    {
        let deleted = spec.get("deleted").and_then(Json::as_bool).unwrap_or_default();
        spec.insert("deleted".to_owned(), Json::String(deleted.to_string()));
    }
    stored
}

fn decode_resource(
    kind: Kind,
    namespace: &str,
    name: &str,
    mut stored: Json,
) -> Result<Resource, ValueError> {
    if kind == Kind::BlockAffinity
        && let Some(deleted) = stored.pointer_mut("/spec/deleted")
        && let Json::String(text) = deleted
    {
        *deleted = Json::Bool(text == "true");
    }
    let tier = stored.pointer("/spec/tier").and_then(Json::as_str).filter(|tier| !tier.is_empty());
    let tier = tier.unwrap_or(DEFAULT_TIER).to_owned();
    let mut resource = Resource::from_store(kind, stored)?;
    let meta = resource.metadata_mut();
    meta.resource_version.clear();
    meta.self_link.clear();
    if meta.name.is_empty() {
        meta.name = name.to_owned();
    }
    if meta.namespace.is_empty() {
        meta.namespace = namespace.to_owned();
    }
    if is_renamed(kind) {
        let true_name = meta.annotations.remove(NAME_ANNOTATION).as_deref().and_then(annotated_name);
        match true_name {
            Some(true_name) => meta.name = true_name,
            None if tier == DEFAULT_TIER => {
                if let Some(short) = meta.name.strip_prefix("default.").filter(|short| !short.is_empty()) {
                    meta.name = short.to_owned();
                }
            }
            None => {}
        }
        meta.labels.entry(TIER_LABEL.to_owned()).or_insert(tier);
    }
    if matches!(kind, Kind::IPPool | Kind::Tier) {
        resource.set_defaults();
    }
    Ok(resource)
}

fn annotated_name(annotation: &str) -> Option<String> {
    let meta: Json = serde_json::from_str(annotation).ok()?;
    meta.get("name")?.as_str().filter(|name| !name.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::AffinityType;

    const POLICY: &str = concat!(
        r#"{"kind":"GlobalNetworkPolicy","apiVersion":"projectcalico.org/v3","metadata":{"name":"deny-metadata","#,
        r#""uid":"4b0c6f3e-6d0e-4a39-9a2e-0f6c1a2b3c4d","creationTimestamp":"2026-03-01T10:20:30Z","#,
        r#""labels":{"projectcalico.org/tier":"default"},"#,
        r#""annotations":{"projectcalico.org/metadata":"{\"name\":\"deny-metadata\"}"}},"#,
        r#""spec":{"tier":"default","order":50,"egress":[{"action":"Deny","protocol":"TCP","#,
        r#""destination":{"nets":["169.254.169.254/32"],"ports":[80]}}],"selector":"all()","types":["Egress"]}}"#
    );

    fn decode(kind: Kind, namespace: &str, name: &str, stored: Json) -> Resource {
        let key = StoreKey::resource(kind, namespace, name);
        match StoreValue::decode(&key, stored.to_string().as_bytes()) {
            Ok(StoreValue::Resource(resource)) => resource,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn stored_policies_are_byte_identical() {
        let key = StoreKey::resource(Kind::GlobalNetworkPolicy, "", "deny-metadata");
        let value = StoreValue::decode(&key, POLICY.as_bytes()).unwrap();
        let StoreValue::Resource(resource) = &value else { panic!("{value:?}") };
        assert!(resource.metadata().annotations.is_empty());
        assert_eq!(resource.metadata().name, "deny-metadata");
        assert_eq!(String::from_utf8(value.encode()).unwrap(), POLICY);
    }

    #[test]
    fn last_of_two_equal_fields_counts() {
        let key = StoreKey::Handle { id: "h".to_owned() };
        let once = StoreValue::decode(&key, br#"{"handleID":"h","block":{"10.0.0.0/26":2},"deleted":false}"#);
        let twice = br#"{"handleID":"x","block":{"10.0.0.0/26":1},"handleID":"h","block":{"10.0.0.0/26":2},"deleted":false}"#;
        assert_eq!(StoreValue::decode(&key, twice).unwrap(), once.unwrap());
        let wrong = StoreValue::decode(&key, br#"{"block":1,"block":2}"#).unwrap_err();
        assert!(wrong.to_string().contains("invalid type"), "{wrong}");
    }

    #[test]
    fn revision_and_self_link_are_never_stored() {
        let mut pool = Resource::new(Kind::IPPool);
        pool.metadata_mut().name = "p".to_owned();
        pool.metadata_mut().resource_version = "17".to_owned();
        pool.metadata_mut().self_link = "/x".to_owned();
        let text = String::from_utf8(StoreValue::from(pool).encode()).unwrap();
        assert!(!text.contains("resourceVersion") && !text.contains("selfLink"), "{text}");
    }

    #[test]
    fn names_of_policies_come_from_their_annotation() {
        let meta =
            json!({"name": "default.web", "annotations": {NAME_ANNOTATION: r#"{"name":"web"}"#, "x": "y"}});
        let policy = decode(Kind::NetworkPolicy, "prod", "default.web", json!({"metadata": meta}));
        assert_eq!(policy.metadata().name, "web");
        assert_eq!(policy.metadata().namespace, "prod");
        assert_eq!(policy.metadata().annotations.len(), 1);
    }

    #[test]
    fn older_policies_lose_the_default_tier_prefix() {
        for (kind, tier, stored, shown) in [
            (Kind::GlobalNetworkPolicy, None, "default.web", "web"),
            (Kind::NetworkPolicy, Some("default"), "default.web", "web"),
            (Kind::StagedNetworkPolicy, Some(""), "default.web", "web"),
            (Kind::StagedGlobalNetworkPolicy, Some("platform"), "default.web", "default.web"),
            (Kind::GlobalNetworkPolicy, Some("platform"), "platform.web", "platform.web"),
            (Kind::NetworkPolicy, None, "knp.default.web", "knp.default.web"),
            (Kind::StagedKubernetesNetworkPolicy, None, "default.web", "default.web"),
            (Kind::GlobalNetworkSet, None, "default.web", "default.web"),
        ] {
            let mut object = json!({"metadata": {"name": stored}, "spec": {}});
            if let Some(tier) = tier {
                object["spec"]["tier"] = json!(tier);
            }
            let namespace = if kind.is_namespaced() { "prod" } else { "" };
            assert_eq!(
                decode(kind, namespace, stored, object).metadata().name,
                shown,
                "{kind} {tier:?} {stored}"
            );
        }
    }

    #[test]
    fn policies_without_the_tier_label_get_it() {
        let policy = decode(Kind::GlobalNetworkPolicy, "", "web", json!({"metadata": {"name": "web"}}));
        assert_eq!(policy.metadata().labels[TIER_LABEL], "default");
        let set = decode(Kind::GlobalNetworkSet, "", "web", json!({"metadata": {"name": "web"}}));
        assert!(set.metadata().labels.is_empty());
    }

    #[test]
    fn affinities_are_deleted_in_words() {
        let stored = json!({"kind": "BlockAffinity", "apiVersion": "projectcalico.org/v3", "metadata": {"name": "a"},
            "spec": {"state": "confirmed", "node": "n1", "type": "host", "cidr": "10.65.3.0/26", "deleted": "false"}});
        let affinity = decode(Kind::BlockAffinity, "", "a", stored.clone());
        assert_eq!(affinity.to_value().pointer("/spec/deleted"), None);
        assert_eq!(String::from_utf8(StoreValue::from(affinity).encode()).unwrap(), stored.to_string());
        let deleted = decode(Kind::BlockAffinity, "", "a", json!({"spec": {"deleted": "true"}}));
        assert_eq!(deleted.to_value().pointer("/spec/deleted"), Some(&json!(true)));
    }

    #[test]
    fn older_pools_and_tiers_get_todays_defaults() {
        let pool = decode(Kind::IPPool, "", "p", json!({"spec": {"cidr": "fd00:65::/48"}})).to_value();
        assert_eq!(
            pool["spec"],
            json!({"cidr": "fd00:65::/48", "vxlanMode": "Never", "ipipMode": "Never", "blockSize": 122,
                "nodeSelector": "all()", "allowedUses": ["Workload", "Tunnel"], "assignmentMode": "Automatic"})
        );
        let tier = decode(Kind::Tier, "", "t", json!({})).to_value();
        assert_eq!(tier["spec"], json!({"order": 1000000, "defaultAction": "Deny"}));
    }

    #[test]
    fn fields_of_newer_versions_are_written_back() {
        let stored = json!({"kind": "BGPPeer", "apiVersion": "projectcalico.org/v3", "metadata": {"name": "p"},
            "spec": {"peerIP": "192.0.2.1", "asNumber": 64512, "fromTheFuture": {"n": 1}}});
        let peer = decode(Kind::BGPPeer, "", "p", stored.clone());
        assert_eq!(String::from_utf8(StoreValue::from(peer).encode()).unwrap(), stored.to_string());
    }

    #[test]
    fn ampersands_are_escaped_like_the_reference_does() {
        let mut policy = Resource::new(Kind::GlobalNetworkPolicy);
        policy.metadata_mut().annotations.insert("note".to_owned(), "<a> && 'b'".to_owned());
        let text = String::from_utf8(StoreValue::from(policy).encode()).unwrap();
        assert!(text.contains(r#""note":"\u003ca\u003e \u0026\u0026 'b'""#), "{text}");
    }

    #[test]
    fn each_key_has_its_type_of_value() {
        let cidr = "10.65.3.0/26".parse().unwrap();
        let affinity = StoreKey::BlockAffinity { affinity: AffinityType::Host, owner: "n1".to_owned(), cidr };
        let status = StoreKey::FelixStatus { region: String::new(), host: "n1".to_owned() };
        let endpoint = StoreKey::HostEndpointStatus { host: "n1".to_owned(), endpoint: "eth0".to_owned() };
        for (key, text) in [
            (StoreKey::Handle { id: "h".to_owned() }, r#"{"block":{"10.65.3.0/26":1},"deleted":false}"#),
            (affinity.clone(), r#"{"state":"pending","deleted":false}"#),
            (StoreKey::IpamConfig, r#"{"auto_allocate_blocks":true}"#),
            (status, r#"{"time":"2026-03-01T10:20:30Z","uptime":12.5,"first_update":true}"#),
            (endpoint, r#"{"status":"up"}"#),
            (StoreKey::CompactRevision, "1234"),
        ] {
            let value =
                StoreValue::decode(&key, text.as_bytes()).unwrap_or_else(|error| panic!("{key}: {error}"));
            assert_eq!(String::from_utf8(value.encode()).unwrap(), text, "{key}");
        }
        assert_eq!(
            StoreValue::decode(&affinity, b"").unwrap(),
            StoreValue::BlockAffinity(BlockAffinity::default())
        );
    }

    #[test]
    fn garbage_is_an_error_with_a_reason() {
        let pool = StoreKey::resource(Kind::IPPool, "", "p");
        for bytes in [&b""[..], b"nonsense", b"[]", b"\xff\xfe", br#"{"metadata":[]}"#, br#"{"spec":"x"}"#] {
            let error = StoreValue::decode(&pool, bytes).unwrap_err();
            assert!(!error.to_string().is_empty());
            assert!(
                StoreValue::decode(&StoreKey::Block { cidr: "10.0.0.0/26".parse().unwrap() }, bytes).is_err()
            );
        }
        let deep = "[".repeat(100_000);
        assert!(StoreValue::decode(&pool, deep.as_bytes()).is_err());
    }
}
