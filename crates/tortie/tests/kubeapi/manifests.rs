//! Reads the manifests of `deploy/`, to run the components with the settings of their containers.

use serde_json::Value;

/// Returns the only object of a kind.
pub fn object_of_kind(manifest: &str, kind: &str) -> Value {
    let objects = tortie_model::codec::documents(manifest.as_bytes()).unwrap();
    let mut found: Vec<Value> = objects.into_iter().filter(|object| object["kind"] == kind).collect();
    assert_eq!(found.len(), 1, "{kind}");
    found.remove(0)
}

/// Returns the environment variables of a workload's container that do not depend on its pod: literal values, and values
/// of the ConfigMap.
pub fn container_variables(workload: &Value, settings: &Value) -> Vec<(String, String)> {
    let container = &workload["spec"]["template"]["spec"]["containers"][0];
    let variables = container["env"].as_array().unwrap().iter().filter_map(|variable| {
        let key = variable["valueFrom"]["configMapKeyRef"]["key"].as_str();
        let value = key.map_or(&variable["value"], |key| &settings[key]).as_str()?;
        Some((variable["name"].as_str().unwrap().to_owned(), value.to_owned()))
    });
    variables.collect()
}
