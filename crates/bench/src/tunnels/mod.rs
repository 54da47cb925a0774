//! Measures tunnels between nodes: the time to program them, and the cost for packets.

mod case;
mod pair;
mod programming;
mod traffic;
mod wireguard;

use crate::namespace::BenchResult;
use crate::{SuiteResult, plain};
use serde_json::json;
use tortie_model::{Kind, Resource, StoreKey, StoreValue};

pub fn programming() -> SuiteResult {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(programming::compare()).map_err(plain)
}

pub fn traffic() -> SuiteResult {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(traffic::compare()).map_err(plain)
}

fn resource(
    kind: Kind,
    namespace: &str,
    name: &str,
    spec: serde_json::Value,
) -> BenchResult<(StoreKey, StoreValue)> {
    with_status(kind, namespace, name, spec, json!({}))
}

fn with_status(
    kind: Kind,
    namespace: &str,
    name: &str,
    spec: serde_json::Value,
    status: serde_json::Value,
) -> BenchResult<(StoreKey, StoreValue)> {
    let metadata = json!({"name": name, "namespace": namespace});
    let object = json!({
        "kind": kind.name(), "apiVersion": "projectcalico.org/v3", "metadata": metadata, "spec": spec, "status": status,
    });
    let resource = Resource::from_store(kind, object).map_err(|error| error.to_string())?;
    Ok((StoreKey::resource(kind, namespace, name), StoreValue::Resource(resource)))
}

fn block(cidr: &str, node: &str) -> BenchResult<(StoreKey, StoreValue)> {
    let key = StoreKey::Block { cidr: cidr.parse()? };
    let text = json!({"cidr": cidr, "affinity": format!("host:{node}"), "allocations": [], "attributes": []});
    let value = StoreValue::decode(&key, text.to_string().as_bytes()).map_err(|error| error.to_string())?;
    Ok((key, value))
}
