//! Measures tunnels between nodes: the time to program them, and the cost for packets.

mod case;
mod pair;
mod programming;
mod traffic;
mod wireguard;

use crate::namespace::Result;
use crate::{Outcome, plain};
use serde_json::json;
use tortie_model::{Key, Kind, Resource, Value};

pub fn programming() -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(programming::compare()).map_err(plain)
}

pub fn traffic() -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(traffic::compare()).map_err(plain)
}

fn resource(kind: Kind, namespace: &str, name: &str, spec: serde_json::Value) -> Result<(Key, Value)> {
    with_status(kind, namespace, name, spec, json!({}))
}

fn with_status(
    kind: Kind,
    namespace: &str,
    name: &str,
    spec: serde_json::Value,
    status: serde_json::Value,
) -> Result<(Key, Value)> {
    let metadata = json!({"name": name, "namespace": namespace});
    let object = json!({
        "kind": kind.name(), "apiVersion": "projectcalico.org/v3", "metadata": metadata, "spec": spec, "status": status,
    });
    let resource = Resource::from_store(kind, object).map_err(|error| error.to_string())?;
    Ok((Key::resource(kind, namespace, name), Value::Resource(resource)))
}

fn block(cidr: &str, node: &str) -> Result<(Key, Value)> {
    let key = Key::Block { cidr: cidr.parse()? };
    let text = json!({"cidr": cidr, "affinity": format!("host:{node}"), "allocations": [], "attributes": []});
    let value = Value::decode(&key, text.to_string().as_bytes()).map_err(|error| error.to_string())?;
    Ok((key, value))
}
