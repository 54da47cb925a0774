//! Policy conformance cases as data. The file formats are described in `conformance/world.yaml` and
//! `conformance/cases.yaml`.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tortie_model::{API_VERSION, Resource, codec};

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConformanceCase {
    #[serde(rename = "case")]
    pub number: u32,
    pub title: String,
    pub steps: Vec<ConformanceStep>,
}

/// One step of a case: resources are applied and deleted, then packets are sent.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConformanceStep {
    #[serde(default)]
    apply: Vec<Value>,
    #[serde(default)]
    delete: Vec<Value>,
    pub packets: Vec<ConformancePacket>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConformancePacket {
    /// A pod as `namespace/name`, a node name, or an external address.
    pub from: String,
    pub to: String,
    /// `tcp/80`, `udp/53`, `icmp/8`, `icmpv6/128`.
    pub port: String,
    /// IP family, 4 or 6, for endpoints with addresses of both families. The default is 4.
    pub family: Option<u8>,
    /// Connection name: packets with the same name belong to the same connection.
    pub flow: Option<String>,
    pub verdict: ExpectedVerdict,
    pub by: Option<String>,
    #[serde(default)]
    pub logged: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExpectedVerdict {
    Allow,
    Deny,
}

impl ConformanceStep {
    pub fn applied(&self) -> Vec<Resource> {
        self.apply.iter().cloned().map(resource).collect()
    }

    /// Returns the resources to delete. Only their kind, namespace and name are significant.
    pub fn deleted(&self) -> Vec<Resource> {
        self.delete.iter().cloned().map(resource).collect()
    }
}

/// Returns the resources that exist at the start of every case.
pub fn world() -> Vec<Resource> {
    documents(include_str!("../conformance/world.yaml")).into_iter().map(resource).collect()
}

pub fn cases() -> Vec<ConformanceCase> {
    documents(include_str!("../conformance/cases.yaml")).into_iter().map(read).collect()
}

// The functions below panic on invalid conformance data, because it is part of the test that uses it.

fn documents(text: &str) -> Vec<Value> {
    codec::documents(text.as_bytes()).unwrap_or_else(|error| panic!("conformance data: {error}"))
}

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value.clone())
        .unwrap_or_else(|error| panic!("conformance data: {error} in {value}"))
}

fn resource(mut value: Value) -> Resource {
    if let Some(fields) = value.as_object_mut() {
        fields.insert("apiVersion".to_owned(), API_VERSION.into());
    }
    let mut resource = Resource::from_user(value.clone())
        .unwrap_or_else(|error| panic!("conformance data: {error} in {value}"));
    resource.set_defaults();
    resource
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_complete_and_resources_valid() {
        let cases = cases();
        assert!(cases.iter().map(|case| case.number).eq(1..=32));
        let steps = cases.iter().flat_map(|case| &case.steps);
        for resource in
            world().iter().chain(&steps.clone().flat_map(ConformanceStep::applied).collect::<Vec<_>>())
        {
            if let Err(error) = resource.validate() {
                panic!("{}: {error}", resource.metadata().name);
            }
        }
        assert!(steps.clone().all(|step| !step.packets.is_empty()));
        for verdict in [ExpectedVerdict::Allow, ExpectedVerdict::Deny] {
            assert!(steps.clone().any(|step| step.packets.iter().any(|sent| sent.verdict == verdict)));
        }
    }
}
