use super::*;
use crate::scalar::{CalicoFloat, Port, is_default};
use serde_json::json;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
struct SampleSpec {
    #[serde(skip_serializing_if = "is_default")]
    order: Option<CalicoFloat>,
    #[serde(skip_serializing_if = "is_default")]
    steps: Vec<SampleStep>,
    #[serde(skip_serializing_if = "is_default")]
    inner: SampleStep,
    #[serde(skip_serializing_if = "is_default")]
    size: u16,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
struct SampleStep {
    #[serde(skip_serializing_if = "is_default")]
    name: String,
    #[serde(skip_serializing_if = "is_default")]
    ports: Vec<Port>,
}

impl ResourceSpec for SampleSpec {
    const KIND: Kind = Kind::Tier;
    type Status = NoStatus;
    const STATUS: StatusForm = StatusForm::Absent;
}

type Sample = TypedObject<SampleSpec>;

fn sample(spec: Value) -> Value {
    json!({"kind": "Tier", "apiVersion": API_VERSION, "metadata": {"name": "x"}, "spec": spec})
}

#[test]
fn unknown_fields_of_users_are_refused_by_path() {
    let spec =
        json!({"order": 1, "stpes": [], "steps": [{"name": "a"}, {"nmae": "b"}], "inner": {"x": null}});
    let mut value = sample(spec);
    value["status"] = json!({});
    value["metadata"]["color"] = json!("red");
    assert_eq!(
        Sample::from_user(value).unwrap_err().to_string(),
        "field in document is not recognized or is in the wrong location: \
         metadata.color, spec.stpes, spec.steps[1].nmae, spec.inner.x, status"
    );
}

#[test]
fn wrong_types_are_refused_by_path() {
    for (spec, path) in [
        (json!({"order": "high"}), "spec.order"),
        (json!({"steps": {}}), "spec.steps"),
        (json!({"steps": [{"ports": [80, 70000]}]}), "spec.steps[0].ports[1]"),
        (json!({"inner": []}), "spec.inner"),
        (json!({"size": 65536}), "spec.size"),
        (json!({"size": 1.5}), "spec.size"),
        (json!(7), "spec"),
    ] {
        let Err(DecodeError::Field { path: found, .. }) = Sample::from_user(sample(spec.clone())) else {
            panic!("{spec} was read")
        };
        assert_eq!(found, path);
    }
}

#[test]
fn nulls_are_zero_and_scalars_are_text() {
    let value =
        sample(json!({"order": null, "steps": null, "inner": {"name": 5, "ports": null}, "size": 4.0}));
    let object = Sample::from_user(value).unwrap();
    assert_eq!(object.to_value()["spec"], json!({"inner": {"name": "5"}, "size": 4}));
    assert_eq!(Sample::from_user(json!({"spec": null, "metadata": null})).unwrap(), Sample::default());
}

#[test]
fn unknown_fields_of_the_store_survive() {
    let original = json!({
        "kind": "Tier", "apiVersion": API_VERSION, "future": 1,
        "metadata": {"name": "x", "color": "red"},
        "spec": {
            "order": 5,
            "steps": [{"name": "a", "colour": "red"}, {"name": "b", "deep": {"er": [1]}}],
            "inner": {"tint": true},
            "new": {"k": [null]}
        },
        "status": {"conditions": []}
    });
    let mut object = Sample::from_store(original.clone()).unwrap();
    assert_eq!(object.to_value(), original);
    assert_eq!(Sample::from_store(object.to_value()).unwrap(), object);
    assert_ne!(Sample::from_store(sample(json!({"order": 5}))).unwrap(), object);

    // Known fields change, unknown ones stay.
    object.spec.order = Some(CalicoFloat(7.0));
    object.spec.inner.name = "i".into();
    let written = object.to_value();
    assert_eq!(written["spec"]["order"], 7);
    assert_eq!(written["spec"]["inner"], json!({"name": "i", "tint": true}));
    assert_eq!(written["spec"]["steps"], original["spec"]["steps"]);

    // In a changed list, only elements whose known part is unchanged get their unknown fields back.
    object.spec.steps.remove(0);
    assert_eq!(object.to_value()["spec"]["steps"], json!([{"name": "b"}]));
    object.spec.steps.insert(0, SampleStep { name: "a".into(), ..SampleStep::default() });
    object.spec.steps[1].name = "c".into();
    assert_eq!(object.to_value()["spec"]["steps"], json!([{"name": "a", "colour": "red"}, {"name": "c"}]));
    object.spec.steps.clear();
    assert_eq!(object.to_value()["spec"].get("steps"), None);
}
