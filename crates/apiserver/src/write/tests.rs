use super::*;
use tortie_model::Kind;

const AUTHOR: WriteAuthor<'_> =
    WriteAuthor { manager: "me", now: "2026-03-01T10:20:30Z", validation: FieldValidation::Warn };

fn build_target(kind: Kind, name: &str) -> WriteTarget<'_> {
    let served = ServedKind::find(kind.plural()).unwrap();
    WriteTarget { served, namespace: "", name, is_status: false }
}

fn tier(spec: Value) -> Value {
    json!({"apiVersion": API_VERSION, "kind": "Tier", "metadata": {"name": "t"}, "spec": spec})
}

/// Returns the object as the store would return it.
fn live(spec: Value) -> Value {
    let mut object =
        prepare_create(build_target(Kind::Tier, ""), tier(spec), AUTHOR).unwrap().resource.to_value();
    object["metadata"]["uid"] = "u".into();
    object["metadata"]["resourceVersion"] = "7".into();
    object["metadata"]["creationTimestamp"] = "2026-03-01T10:00:00Z".into();
    object
}

fn changed(outcome: Result<WriteOutcome, StatusError>) -> Value {
    match outcome {
        Ok(WriteOutcome::Changed(prepared)) => prepared.resource.to_value(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_new_object_has_metadata_of_the_server() {
    let mut sent = tier(json!({"order": 5, "sauce": 1}));
    sent["metadata"]["uid"] = "mine".into();
    sent["status"] = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    let prepared = prepare_create(build_target(Kind::Tier, ""), sent.clone(), AUTHOR).unwrap();
    let object = prepared.resource.to_value();
    assert_eq!(prepared.warnings, ["unknown field \"spec.sauce\""]);
    assert_eq!(object["metadata"].get("uid"), None);
    assert_eq!(object["metadata"]["generation"], 1);
    assert_eq!(object["status"], json!({}));
    assert_eq!(object["metadata"]["managedFields"][0]["manager"], "me");
    let strict = WriteAuthor { validation: FieldValidation::Strict, ..AUTHOR };
    let refusal = prepare_create(build_target(Kind::Tier, ""), sent.clone(), strict).unwrap_err();
    assert!(refusal.code() == 400 && refusal.message.contains("unknown field \"spec.sauce\""), "{refusal:?}");
    sent["metadata"]["resourceVersion"] = "3".into();
    assert_eq!(prepare_create(build_target(Kind::Tier, ""), sent, AUTHOR).unwrap_err().code(), 400);
}

#[test]
fn what_is_of_another_type_is_named() {
    let refusal =
        prepare_create(build_target(Kind::Tier, ""), tier(json!({"order": "high"})), AUTHOR).unwrap_err();
    let status = refusal.to_status();
    assert_eq!((refusal.code(), &status["details"]["causes"][0]["field"]), (422, &json!("spec.order")));
}

#[test]
fn an_update_names_what_it_was_made_from() {
    let live = live(json!({"order": 5}));
    let update = |object: Value, must: bool| {
        prepare_update(build_target(Kind::Tier, "t"), &live, object, AUTHOR, must)
    };
    let mut new = tier(json!({"order": 6}));
    assert_eq!(update(new.clone(), true).unwrap_err().code(), 422);
    new["metadata"]["resourceVersion"] = "6".into();
    assert_eq!(update(new.clone(), true).unwrap_err().code(), 409);
    new["metadata"]["resourceVersion"] = "7".into();
    let object = changed(update(new.clone(), true));
    assert_eq!(object["metadata"]["generation"], 2);
    assert_eq!(object["metadata"]["uid"], "u");
    new["metadata"]["uid"] = "other".into();
    assert_eq!(update(new, true).unwrap_err().code(), 409);
    assert_eq!(update(live.clone(), true), Ok(WriteOutcome::Same));
    let mut renamed = live.clone();
    renamed["metadata"]["name"] = "x".into();
    assert_eq!(update(renamed, true).unwrap_err().code(), 400);
}

#[test]
fn status_and_object_are_written_apart() {
    let live = live(json!({"order": 5}));
    let mut new = live.clone();
    new["spec"]["order"] = 9.into();
    new["metadata"]["labels"] = json!({"a": "b"});
    new["status"] = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    let object = changed(prepare_update(build_target(Kind::Tier, "t"), &live, new.clone(), AUTHOR, true));
    assert_eq!((&object["spec"]["order"], &object["status"]), (&json!(9), &json!({})));
    let status = WriteTarget { is_status: true, ..build_target(Kind::Tier, "t") };
    let object = changed(prepare_update(status, &live, new, AUTHOR, true));
    assert_eq!(object["spec"]["order"], 5);
    assert_eq!(object["metadata"].get("labels"), None);
    assert_eq!(object["metadata"]["generation"], 1);
    assert_eq!(object["status"]["conditions"][0]["type"], "Ready");
}

#[test]
fn the_last_finalizer_lets_the_object_go() {
    let mut live = live(json!({"order": 5}));
    live["metadata"]["finalizers"] = json!(["a/b", "c/d"]);
    live["metadata"]["deletionTimestamp"] = "2026-03-01T11:00:00Z".into();
    let with = |finalizers: Value| {
        let mut new = live.clone();
        new["metadata"]["finalizers"] = finalizers;
        prepare_update(build_target(Kind::Tier, "t"), &live, new, AUTHOR, true)
    };
    assert!(matches!(with(json!(["a/b"])), Ok(WriteOutcome::Changed(_))));
    assert_eq!(with(json!([])), Ok(WriteOutcome::Gone));
    assert_eq!(with(json!(["a/b", "c/d", "e/f"])).unwrap_err().code(), 422);
}

#[test]
fn configurations_are_applied_and_conflict() {
    let config = |order: i64| tier(json!({ "order": order }));
    let a = WriteAuthor { manager: "a", ..AUTHOR };
    let build_target = build_target(Kind::Tier, "t");
    let mut object = changed(prepare_apply(build_target, None, config(5), a, false));
    object["metadata"]["uid"] = "u".into();
    object["metadata"]["resourceVersion"] = "7".into();
    assert_eq!(object["metadata"]["generation"], 1);
    // Fields set by the server have no manager.
    assert_eq!(object["metadata"]["managedFields"][0]["fieldsV1"], json!({"f:spec": {"f:order": {}}}));
    let b = WriteAuthor { manager: "b", ..AUTHOR };
    let refusal = prepare_apply(build_target, Some(&object), config(6), b, false).unwrap_err();
    assert_eq!((refusal.code(), refusal.reason_name()), (409, "Conflict"));
    assert_eq!(refusal.to_status()["details"]["causes"][0]["field"], ".spec.order");
    let forced = changed(prepare_apply(build_target, Some(&object), config(6), b, true));
    assert_eq!(forced["spec"]["order"], 6);
    assert_eq!(prepare_apply(build_target, Some(&object), config(5), a, false), Ok(WriteOutcome::Same));
    let nobody = WriteAuthor { manager: "", ..AUTHOR };
    assert_eq!(prepare_apply(build_target, Some(&object), config(5), nobody, false).unwrap_err().code(), 422);
    let mut owned = config(5);
    owned["metadata"]["managedFields"] = json!([]);
    assert_eq!(prepare_apply(build_target, Some(&object), owned, a, false).unwrap_err().code(), 400);
}

#[test]
fn fields_of_newer_versions_stay() {
    let mut live = live(json!({"order": 5}));
    live["spec"]["fromTheFuture"] = json!({"a": 1});
    let mut new = live.clone();
    new["spec"]["order"] = 6.into();
    let object = changed(prepare_update(build_target(Kind::Tier, "t"), &live, new, AUTHOR, true));
    assert_eq!(object["spec"]["fromTheFuture"], json!({"a": 1}));
}
