use super::*;
use proptest::prelude::*;

const VERSION: &str = "projectcalico.org/v3";
const NOW: &str = "2026-03-01T10:20:30Z";

fn shape() -> MergeSchema {
    MergeSchema::from_object_schema(&json!({"type": "object", "properties": {
        "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"},
        "spec": {"type": "object", "properties": {
            "order": {"type": "number"},
            "tier": {"type": "string"},
            "rules": {"type": "array", "items": {"type": "object", "properties": {"action": {"type": "string"}}}},
            "nets": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
            "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "properties": {"name": {"type": "string"}, "port": {"type": "integer"}}}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        }},
        "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
    }}))
}

fn by<'a>(name: &'a str, reset: &'a FieldSet) -> FieldManager<'a> {
    FieldManager { name, api_version: VERSION, subresource: "", reset, now: NOW }
}

fn object(spec: Value) -> Value {
    json!({"apiVersion": VERSION, "kind": "X", "metadata": {"name": "x"}, "spec": spec})
}

fn nothing() -> Value {
    json!({"apiVersion": VERSION, "kind": "X"})
}

/// Applies a spec and returns the resulting object and owners.
fn applied(
    live: &Value,
    managed: ManagedFields,
    name: &str,
    spec: Value,
    force: bool,
) -> Result<ApplyResult, ApplyError> {
    apply(&shape(), live, &object(spec), managed, by(name, &FieldSet::from_names(&[&["status"]])), force)
}

fn fields(managed: &ManagedFields, name: &str) -> Value {
    let entry = managed.encode().into_iter().find(|entry| entry["manager"] == name);
    entry.map_or(Value::Null, |entry| entry["fieldsV1"].clone())
}

#[test]
fn only_appliers_remove_fields_that_they_own() {
    let first = applied(
        &nothing(),
        ManagedFields::default(),
        "a",
        json!({"order": 1, "nets": ["10.0.0.0/8"]}),
        false,
    )
    .unwrap();
    assert_eq!(
        fields(&first.managed, "a"),
        json!({"f:spec": {"f:nets": {"v:\"10.0.0.0/8\"": {}}, "f:order": {}}})
    );
    let second =
        applied(&first.object, first.managed, "b", json!({"nets": ["10.0.0.0/8", "11.0.0.0/8"]}), false)
            .unwrap();
    assert_eq!(second.object["spec"]["nets"], json!(["10.0.0.0/8", "11.0.0.0/8"]));
    // The field stays as long as one of its two owners keeps it.
    let third = applied(&second.object, second.managed, "a", json!({"tier": "t"}), false).unwrap();
    assert_eq!(third.object["spec"], json!({"nets": ["10.0.0.0/8", "11.0.0.0/8"], "tier": "t"}));
    let fourth = applied(&third.object, third.managed, "b", json!({}), false).unwrap();
    assert_eq!(fourth.object["spec"], json!({"tier": "t"}));
    // A manager that applies an empty object owns the field itself.
    assert_eq!(fields(&fourth.managed, "b"), json!({"f:spec": {}}));
}

#[test]
fn foreign_fields_conflict_until_forced() {
    let first = applied(
        &nothing(),
        ManagedFields::default(),
        "a",
        json!({"order": 1, "rules": [{"action": "Deny"}]}),
        false,
    )
    .unwrap();
    let wanted = json!({"order": 2, "rules": [{"action": "Allow"}]});
    let refused = applied(&first.object, first.managed.clone(), "b", wanted.clone(), false).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "Apply failed with 2 conflicts: conflicts with \"a\":\n- .spec.order\n- .spec.rules"
    );
    let forced = applied(&first.object, first.managed, "b", wanted.clone(), true).unwrap();
    assert_eq!(forced.object["spec"], wanted);
    assert_eq!(fields(&forced.managed, "a"), Value::Null);
    // Applying the same value is no conflict: both managers own the field.
    let same = applied(&forced.object, forced.managed, "a", json!({"order": 2}), false).unwrap();
    assert_eq!(fields(&same.managed, "a"), json!({"f:spec": {"f:order": {}}}));
}

/// As in Kubernetes: the owner of a map keeps it when another manager removes its last key.
#[test]
fn a_map_stays_owned_after_its_last_key() {
    let reset = FieldSet::from_names(&[&["status"]]);
    let made = object(json!({"order": 1, "labels": {"b": "1"}}));
    let managed = update(&shape(), &nothing(), &made, ManagedFields::default(), by("editor", &reset));
    let spec = json!({"labels": {"b": "2"}});
    let forced = applied(&made, managed, "a", spec, true).unwrap();
    let without = applied(&forced.object, forced.managed, "a", json!({"tier": "t"}), false).unwrap();
    assert_eq!(without.object["spec"], json!({"order": 1, "tier": "t"}));
    assert_eq!(
        fields(&without.managed, "editor"),
        json!({"f:spec": {".": {}, "f:labels": {}, "f:order": {}}})
    );
}

#[test]
fn an_update_takes_what_it_changes() {
    let reset = FieldSet::from_names(&[&["status"]]);
    let first =
        applied(&nothing(), ManagedFields::default(), "a", json!({"order": 1, "tier": "t"}), false).unwrap();
    let mut live = first.object;
    live["metadata"]["uid"] = "u".into();
    let mut new = live.clone();
    new["spec"]["order"] = 5.into();
    new["status"] = json!({"phase": "ignored"});
    let managed = update(&shape(), &live, &new, first.managed, by("editor", &reset));
    assert_eq!(fields(&managed, "a"), json!({"f:spec": {"f:tier": {}}}));
    assert_eq!(fields(&managed, "editor"), json!({"f:spec": {"f:order": {}}}));
    let refused =
        apply(&shape(), &new, &object(json!({"order": 1})), managed, by("a", &reset), false).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "Apply failed with 1 conflict: conflict with \"editor\" using projectcalico.org/v3: .spec.order"
    );
}

#[test]
fn fields_before_the_first_apply_have_one_owner() {
    let mut live = object(json!({"order": 1}));
    live["metadata"]["uid"] = "u".into();
    let mut new = live.clone();
    new["spec"]["order"] = 2.into();
    assert!(
        update(&shape(), &live, &new, ManagedFields::default(), by("editor", &FieldSet::default()))
            .is_empty()
    );
    let applied = applied(&new, ManagedFields::default(), "a", json!({"tier": "t"}), false).unwrap();
    assert_eq!(
        fields(&applied.managed, BEFORE_FIRST_APPLY_MANAGER),
        json!({"f:spec": {".": {}, "f:order": {}}})
    );
}

#[test]
fn kubectl_moves_from_client_side_to_server_side() {
    let reset = FieldSet::default();
    let mut live = object(json!({"order": 1}));
    live["metadata"]["annotations"] =
        json!({LAST_APPLIED_ANNOTATION: object(json!({"order": 1})).to_string()});
    let managed = update(
        &shape(),
        &nothing(),
        &live,
        ManagedFields::default(),
        by("kubectl-client-side-apply", &reset),
    );
    let config = object(json!({"order": 2}));
    let moved = apply(&shape(), &live, &config, managed.clone(), by("kubectl", &reset), false).unwrap();
    assert_eq!(moved.object["spec"]["order"], 2);
    let text = moved.object["metadata"]["annotations"][LAST_APPLIED_ANNOTATION].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(text).unwrap(), config);
    assert!(apply(&shape(), &live, &config, managed, by("other", &reset), false).is_err());
}

#[test]
fn elements_with_map_keys_merge_one_by_one() {
    let first = applied(
        &nothing(),
        ManagedFields::default(),
        "a",
        json!({"ports": [{"name": "x", "port": 1}]}),
        false,
    )
    .unwrap();
    let second =
        applied(&first.object, first.managed, "b", json!({"ports": [{"name": "y", "port": 2}]}), false)
            .unwrap();
    assert_eq!(second.object["spec"]["ports"], json!([{"name": "x", "port": 1}, {"name": "y", "port": 2}]));
    let third = applied(&second.object, second.managed, "a", json!({}), false).unwrap();
    assert_eq!(third.object["spec"]["ports"], json!([{"name": "y", "port": 2}]));
}

#[test]
fn a_configuration_of_another_shape_is_refused() {
    for (spec, path) in [
        (json!({"sauce": 1}), ".spec.sauce: field not declared in schema"),
        (json!({"order": "x"}), ".spec.order: expected a number"),
        (json!({"nets": ["a", "a"]}), ".spec.nets: duplicate entries for key [=\"a\"]"),
    ] {
        let text = applied(&nothing(), ManagedFields::default(), "a", spec, false).unwrap_err().to_string();
        assert!(text.contains(path), "{text}");
    }
}

#[test]
fn more_updaters_than_are_told_apart_become_one() {
    let reset = FieldSet::default();
    let mut live = nothing();
    let mut managed = ManagedFields::default();
    for number in 0..15 {
        let mut new = live.clone();
        new["spec"]["labels"][format!("k{number}")] = "v".into();
        let name = format!("m{number:02}");
        let now = format!("2026-03-01T10:20:{number:02}Z");
        managed = update(&shape(), &live, &new, managed, FieldManager { now: &now, ..by(&name, &reset) });
        live = new;
    }
    let names: Vec<String> = managed.0.keys().map(|id| id.manager.clone()).collect();
    assert_eq!(names.len(), MAX_UPDATERS);
    assert!(names.contains(&"ancient-changes".to_owned()) && names.contains(&"m14".to_owned()), "{names:?}");
    assert_eq!(
        fields(&managed, "ancient-changes")["f:spec"]["f:labels"].as_object().unwrap().len(),
        15 - MAX_UPDATERS + 2
    );
}

/// As many owners as fit into a request body. Copying the merged set for each of them would take minutes.
#[test]
fn thousands_of_owners_merge_without_copies() {
    const OWNERS: usize = 20_000;
    let labels: serde_json::Map<String, Value> =
        (0..OWNERS).map(|number| (format!("k{number}"), "v".into())).collect();
    let mut live = object(json!({ "labels": labels }));
    live["metadata"]["uid"] = "u".into();
    let entries = |operation: &str| -> Vec<Value> {
        let entry = |number| {
            json!({"manager": format!("m{number}"), "operation": operation, "apiVersion": VERSION,
                "time": NOW, "fieldsType": "FieldsV1",
                "fieldsV1": {"f:spec": {"f:labels": {format!("f:k{number}"): {}}}}})
        };
        (0..OWNERS).map(entry).collect()
    };
    let updaters = ManagedFields::decode(&entries("Update")).unwrap();
    let managed = update(&shape(), &live, &live, updaters, by("me", &FieldSet::default()));
    assert_eq!(managed.0.len(), MAX_UPDATERS);
    let oldest = fields(&managed, "ancient-changes");
    assert!(oldest["f:spec"]["f:labels"].as_object().unwrap().len() > OWNERS - MAX_UPDATERS);
    // The first manager no longer applies its label, so the label is removed; the others stay.
    let appliers = ManagedFields::decode(&entries("Apply")).unwrap();
    let applied = applied(&live, appliers, "m0", json!({"order": 1}), false).unwrap();
    assert_eq!(applied.object["spec"]["labels"].as_object().unwrap().len(), OWNERS - 1);
}

#[test]
fn another_order_is_written_and_belongs_to_nobody() {
    let spec = json!({"nets": ["a", "b"], "ports": [{"name": "x", "port": 1}, {"name": "y", "port": 2}]});
    let turned = json!({"nets": ["b", "a"], "ports": [{"name": "y", "port": 2}, {"name": "x", "port": 1}]});
    let first = applied(&nothing(), ManagedFields::default(), "a", spec.clone(), false).unwrap();
    let live = object(turned);
    assert!(!equal(&first.object, &live));
    let managed =
        update(&shape(), &first.object, &live, first.managed.clone(), by("b", &FieldSet::default()));
    assert_eq!(managed, first.managed);
    // The applier of the elements sets their order without a conflict.
    let again = applied(&live, managed, "a", spec.clone(), false).unwrap();
    assert_eq!(again.object["spec"], spec);
}

const MAX_UPDATERS: usize = 10;

fn specs() -> impl Strategy<Value = Value> {
    let texts = || prop::sample::subsequence(vec!["a", "b", "c", "d"], 0..=4);
    let ports = prop::collection::btree_map("[xyz]", 1..4i64, 0..3)
        .prop_map(|ports| ports.into_iter().collect::<Vec<_>>())
        .prop_shuffle();
    (
        prop::option::of(1..4i64),
        prop::option::of("[tu]"),
        texts().prop_shuffle(),
        ports,
        texts(),
        prop::collection::vec("[AD]", 0..3),
    )
        .prop_map(|(order, tier, nets, ports, labels, rules)| {
            let mut spec = json!({});
            if let Some(order) = order {
                spec["order"] = order.into();
            }
            if let Some(tier) = tier {
                spec["tier"] = tier.into();
            }
            if !nets.is_empty() {
                spec["nets"] = json!(nets);
            }
            if !ports.is_empty() {
                let ports: Vec<Value> =
                    ports.into_iter().map(|(name, port)| json!({"name": name, "port": port})).collect();
                spec["ports"] = ports.into();
            }
            for label in labels {
                spec["labels"][label] = "v".into();
            }
            if !rules.is_empty() {
                spec["rules"] = rules.into_iter().map(|action| json!({"action": action})).collect();
            }
            spec
        })
}

/// Sorts the lists whose elements have an identity: their order has no owner.
fn in_order(mut spec: Value) -> Value {
    for (list, key) in [("nets", ""), ("ports", "/name")] {
        if let Some(list) = spec.get_mut(list).and_then(Value::as_array_mut) {
            list.sort_by_key(|item| item.pointer(key).and_then(Value::as_str).map(str::to_owned));
        }
    }
    spec
}

/// Returns specs with at least one field: an empty spec that only the applier owns is removed with its last field.
fn specs_with_fields() -> impl Strategy<Value = Value> {
    specs().prop_filter("it has fields", |spec| *spec != json!({}))
}

proptest! {
    #[test]
    fn applying_twice_changes_nothing(steps in prop::collection::vec((0..3usize, specs_with_fields()), 1..8)) {
        let shape = shape();
        let (mut live, mut managed) = (nothing(), ManagedFields::default());
        for (who, spec) in steps {
            let name = ["a", "b", "c"][who];
            let config = object(spec.clone());
            let once = applied(&live, managed, name, spec.clone(), true).unwrap();
            // Everything that was applied is in the object, and the applier owns it.
            let merged = merge(&shape, Some(&once.object), Some(&config)).unwrap();
            prop_assert!(equal(&merged, &once.object), "{merged} != {}", once.object);
            let twice = applied(&once.object, once.managed.clone(), name, spec, false).unwrap();
            prop_assert_eq!(&twice, &once);
            // Every field of the spec has an owner: no field is left behind.
            let all = once.managed.0.values().fold(FieldSet::default(), |all, owned| all.union(&owned.set));
            let found = list_fields(&shape, &once.object).difference(&FieldSet::from_names(SERVER_OWNED_FIELDS)).with_named_fields(&shape);
            let orphans = found.difference(&all.with_named_fields(&shape)).difference(&FieldSet::from_names(&[&["metadata"], &["spec"]]));
            prop_assert!(orphans.is_empty(), "{:?}", orphans.paths());
            (live, managed) = (once.object, once.managed);
        }
        // The record survives encoding and decoding.
        prop_assert_eq!(ManagedFields::decode(&managed.encode()).unwrap(), managed);
    }

    #[test]
    fn an_update_owns_only_what_it_changes(before in specs(), after in specs()) {
        let shape = shape();
        let same = equal(&in_order(before.clone()), &in_order(after.clone()));
        let (before, after) = (object(before), object(after));
        let changes = compare(&shape, &before, &after);
        prop_assert_eq!(same, changes == Default::default());
        // Comparing in the other direction swaps added and removed fields.
        let back = compare(&shape, &after, &before);
        prop_assert_eq!((&back.added, &back.removed, &back.modified), (&changes.removed, &changes.added, &changes.modified));
    }

    #[test]
    fn sets_obey_the_laws_of_sets(a in specs(), b in specs()) {
        let shape = shape();
        let (a, b) = (list_fields(&shape, &object(a)), list_fields(&shape, &object(b)));
        prop_assert_eq!(a.union(&b), b.union(&a));
        prop_assert_eq!(a.intersection(&b), b.intersection(&a));
        prop_assert_eq!(a.difference(&b).union(&a.intersection(&b)), a.clone());
        prop_assert!(a.difference(&a).is_empty());
        prop_assert_eq!(crate::fields_v1::decode(&crate::fields_v1::encode(&a)).unwrap(), a);
    }
}
