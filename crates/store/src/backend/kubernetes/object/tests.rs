use super::*;

const UID: &str = "80000000-0000-4000-8000-000000000001";
const STORED_UID: &str = "01000000-0000-4000-8000-000000000080";

fn policy() -> Resource {
    Resource::from_user(json!({
        "apiVersion": API_VERSION, "kind": "NetworkPolicy",
        "metadata": {"name": "web", "namespace": "prod", "uid": UID, "resourceVersion": "12",
            "creationTimestamp": "2026-03-01T10:20:30Z",
            "labels": {"app": "web", "projectcalico.org/tier": "default"},
            "annotations": {"note": "x", "operator.tigera.io/y": "z"},
            "ownerReferences": [{"apiVersion": API_VERSION, "kind": "Tier", "name": "t", "uid": UID}]},
        "spec": {"tier": "default", "selector": "all()", "types": ["Ingress"]},
    }))
    .unwrap()
}

fn resource(value: Result<StoreValue, UnreadableObject>) -> Resource {
    match value {
        Ok(StoreValue::Resource(resource)) => resource,
        other => panic!("{other:?}"),
    }
}

#[test]
fn version_1_hides_metadata_in_an_annotation() {
    let stored = write(CalicoApiGroup::V1, "default.web", &policy());
    assert_eq!(stored["apiVersion"], "crd.projectcalico.org/v1");
    let meta = &stored["metadata"];
    assert_eq!(meta["name"], "default.web");
    assert_eq!(meta["namespace"], "prod");
    assert_eq!(meta["uid"], STORED_UID);
    assert_eq!(meta["resourceVersion"], "12");
    assert_eq!(meta["labels"], json!({"projectcalico.org/tier": "default"}));
    let hidden: Json =
        serde_json::from_str(meta["annotations"][METADATA_ANNOTATION].as_str().unwrap()).unwrap();
    assert_eq!(hidden["name"], "web");
    assert_eq!(hidden["labels"]["app"], "web");
    assert_eq!(hidden["ownerReferences"][0]["apiVersion"], "crd.projectcalico.org/v1");
    assert_eq!(hidden["ownerReferences"][0]["uid"], STORED_UID);
    for gone in ["uid", "resourceVersion", "namespace"] {
        assert_eq!(hidden.get(gone), None, "{gone}");
    }
    assert_eq!(stored["spec"], policy().to_value()["spec"]);
    let (key, value) = read(CalicoApiGroup::V1, Kind::NetworkPolicy, stored);
    assert_eq!(key, StoreKey::resource(Kind::NetworkPolicy, "prod", "default.web"));
    let mut expected = policy();
    // The client sets it from the revision.
    expected.metadata_mut().resource_version.clear();
    assert_eq!(resource(value), expected);
}

#[test]
fn version_3_stores_what_people_see() {
    let stored = write(CalicoApiGroup::V3, "web", &policy());
    assert_eq!(stored, policy().to_value());
    let (key, value) = read(CalicoApiGroup::V3, Kind::NetworkPolicy, stored);
    assert_eq!(key, StoreKey::resource(Kind::NetworkPolicy, "prod", "web"));
    let mut expected = policy();
    expected.metadata_mut().resource_version.clear();
    assert_eq!(resource(value), expected);
}

#[test]
fn other_kinds_do_not_repeat_their_name() {
    let pool = Resource::from_user(json!({
        "apiVersion": API_VERSION, "kind": "IPPool", "metadata": {"name": "p"},
        "spec": {"cidr": "10.65.0.0/16", "blockSize": 26},
    }))
    .unwrap();
    let stored = write(CalicoApiGroup::V1, "p", &pool);
    let hidden: Json =
        serde_json::from_str(stored["metadata"]["annotations"][METADATA_ANNOTATION].as_str().unwrap())
            .unwrap();
    assert_eq!(hidden.get("name"), None);
    assert_eq!(resource(read(CalicoApiGroup::V1, Kind::IPPool, stored).1).metadata().name, "p");
}

#[test]
fn an_object_without_annotation_is_read_unchanged() {
    let stored = json!({
        "metadata": {"name": "default.web", "namespace": "prod", "uid": STORED_UID, "labels": {"a": "b"},
            "managedFields": [{"manager": "kubectl"}]},
        "spec": {"selector": "all()"},
    });
    let policy = resource(read(CalicoApiGroup::V1, Kind::NetworkPolicy, stored).1);
    assert_eq!(policy.metadata().name, "default.web");
    assert_eq!(policy.metadata().uid, UID);
    assert_eq!(policy.metadata().labels["a"], "b");
    assert!(policy.metadata().managed_fields.is_empty() && policy.metadata().annotations.is_empty());
}

#[test]
fn older_policies_lose_the_default_tier_prefix() {
    for (tier, shown) in [(json!("default"), "web"), (Json::Null, "web"), (json!("platform"), "default.web")]
    {
        let mut stored = json!({
            "metadata": {"name": "default.web", "namespace": "prod",
                "annotations": {METADATA_ANNOTATION: r#"{"creationTimestamp":null,"labels":{"a":"b"}}"#}},
            "spec": {"selector": "all()"},
        });
        if !tier.is_null() {
            stored["spec"]["tier"] = tier;
        }
        assert_eq!(resource(read(CalicoApiGroup::V1, Kind::NetworkPolicy, stored).1).metadata().name, shown);
    }
}

#[test]
fn metadata_of_users_win_over_the_stored_ones() {
    let stored = json!({
        "metadata": {"name": "s", "creationTimestamp": "2026-03-01T10:20:30Z",
            "labels": {"a": "own", "c": "own"}, "annotations": {"x": "own", METADATA_ANNOTATION: r#"{"labels":{"a":"theirs"}}"#}},
        "spec": {"nets": ["10.0.0.0/8"]},
    });
    let set = resource(read(CalicoApiGroup::V1, Kind::GlobalNetworkSet, stored).1);
    let meta = set.metadata();
    assert_eq!((meta.labels["a"].as_str(), meta.labels["c"].as_str()), ("theirs", "own"));
    assert_eq!(meta.annotations["x"], "own");
    assert_eq!(meta.creation_timestamp.as_deref(), Some("2026-03-01T10:20:30Z"));
}

#[test]
fn v1_marks_deleted_affinities_with_text() {
    let affinity = Resource::from_user(json!({
        "apiVersion": API_VERSION, "kind": "BlockAffinity", "metadata": {"name": "a"},
        "spec": {"state": "confirmed", "node": "n1", "type": "host", "cidr": "10.65.3.0/26"},
    }))
    .unwrap();
    let stored = write(CalicoApiGroup::V1, "a", &affinity);
    assert_eq!(stored["spec"]["deleted"], "false");
    assert_eq!(resource(read(CalicoApiGroup::V1, Kind::BlockAffinity, stored).1), affinity);
    assert_eq!(write(CalicoApiGroup::V3, "a", &affinity)["spec"].get("deleted"), None);
}

#[test]
fn what_cannot_be_read_keeps_its_key() {
    for (object, part) in [
        (json!({"metadata": {"name": "x", "labels": 7}}), "invalid type"),
        (
            json!({"metadata": {"name": "x", "annotations": {METADATA_ANNOTATION: "nonsense"}}}),
            METADATA_ANNOTATION,
        ),
        (json!({"metadata": {"name": "x"}, "spec": "text"}), "spec"),
    ] {
        let (key, value) = read(CalicoApiGroup::V1, Kind::GlobalNetworkSet, object);
        assert_eq!(key, StoreKey::resource(Kind::GlobalNetworkSet, "", "x"));
        let error = value.unwrap_err().error.to_string();
        assert!(error.contains(part), "{error}");
    }
}
