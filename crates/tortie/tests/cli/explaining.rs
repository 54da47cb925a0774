//! `tortie explain` gives the expected verdict for every policy conformance case.

use crate::lab::{CalicoctlLab, CommandOutput, LabBackend};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use tortie_model::{Resource, StoreKey, StoreValue};
use tortie_store::{StoreClient, StoreConfig};
use tortie_testkit::conformance::{ConformancePacket, ExpectedVerdict, cases, world};

fn key(resource: &Resource) -> StoreKey {
    let meta = resource.metadata();
    StoreKey::resource(resource.kind(), &meta.namespace, &meta.name)
}

/// The contents of the datastore, written without validation, as other clients may.
struct UncheckedStore {
    client: StoreClient,
    runtime: tokio::runtime::Runtime,
    written: BTreeMap<StoreKey, Resource>,
}

impl UncheckedStore {
    fn of(lab: &CalicoctlLab) -> UncheckedStore {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let config = StoreConfig::at(lab.endpoint());
        let client = runtime.block_on(StoreClient::connect(&config)).unwrap();
        UncheckedStore { client, runtime, written: BTreeMap::new() }
    }

    fn put(&mut self, resource: Resource) {
        let key = key(&resource);
        self.runtime
            .block_on(self.client.apply(&key, &StoreValue::Resource(resource.clone()), None))
            .unwrap();
        self.written.insert(key, resource);
    }

    fn delete(&mut self, key: &StoreKey) {
        self.runtime.block_on(self.client.delete(key, None)).unwrap();
        self.written.remove(key);
    }

    /// Resets the datastore to the state that every case starts from.
    fn reset(&mut self) {
        for key in self.written.keys().cloned().collect::<Vec<_>>() {
            self.delete(&key);
        }
        world().into_iter().for_each(|resource| self.put(resource));
    }

    /// Returns a name or address that selects the endpoint in the given address family.
    fn name(&self, name: &str, family: Option<u8>) -> String {
        if family != Some(6) {
            return name.to_owned();
        }
        let text = self.written.values().find_map(|resource| match resource {
            Resource::WorkloadEndpoint(endpoint) => {
                let own = format!("{}/{}", endpoint.metadata.namespace, endpoint.spec.pod);
                (own == name).then(|| endpoint.spec.ip_networks[1].clone())
            }
            Resource::Node(node) if node.metadata.name == name => {
                node.spec.bgp.as_ref().map(|bgp| bgp.ipv6_address.clone())
            }
            _ => None,
        });
        text.unwrap_or_else(|| name.to_owned()).split('/').next().unwrap().to_owned()
    }
}

/// Returns the decision in the terms of the conformance data: the first section that denies, or the last one.
fn by(answer: &Json) -> String {
    let sections = answer["sections"].as_array().unwrap();
    let refused = sections.iter().find(|section| section["allowed"] == false);
    let section = refused.or(sections.last()).unwrap();
    match section["cause"].as_str().unwrap() {
        "rule" => {
            let last = section["rules"].as_array().unwrap().last().unwrap();
            assert_eq!(last["matched"], true, "{answer:#}");
            last["of"].as_str().unwrap().to_owned()
        }
        "tierEnd" => section["because"].as_str().unwrap().split(':').next().unwrap().to_owned(),
        "endpointToHost" => "endpoint to host".to_owned(),
        other => other.to_owned(),
    }
}

fn check(lab: &CalicoctlLab, store: &UncheckedStore, sent: &ConformancePacket, title: &str) {
    let (from, to) = (store.name(&sent.from, sent.family), store.name(&sent.to, sent.family));
    let mut explain = lab.command(lab.program("tortie"));
    explain.args(["explain", "--from", &from, "--to", &to, "--port", &sent.port, "-o", "json"]);
    let ran: CommandOutput = explain.output().unwrap().into();
    let allowed = sent.verdict == ExpectedVerdict::Allow;
    assert_eq!(ran.code, Some(i32::from(!allowed)), "{title}: {sent:?}: {ran:?}");
    let answer: Json = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(answer["allowed"], allowed, "{title}: {sent:?}: {answer:#}");
    if let Some(expected) = &sent.by {
        assert_eq!(by(&answer), *expected, "{title}: {sent:?}: {answer:#}");
    }
}

#[test]
fn explain_is_right_about_every_conformance_case() {
    let lab = CalicoctlLab::on(LabBackend::Embedded);
    let mut store = UncheckedStore::of(&lab);
    for case in cases() {
        store.reset();
        for step in &case.steps {
            step.applied().into_iter().for_each(|resource| store.put(resource));
            step.deleted().iter().for_each(|resource| store.delete(&key(resource)));
            // `explain` judges new flows; packets of established flows that outlive a policy are left out.
            let new = |sent: &&ConformancePacket| sent.by.as_deref() != Some("connection");
            for sent in step.packets.iter().filter(new) {
                check(&lab, &store, sent, &case.title);
            }
        }
    }
}
