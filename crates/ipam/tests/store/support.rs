//! Test fixture: a store with pools and nodes.

use ipnet::IpNet;
use serde_json::{Value as Json, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tempfile::TempDir;
use tortie_datastore::{StoreOptions, StoreServer};
use tortie_ipam::pool::AllocationPool;
use tortie_ipam::{
    AddressHolder, Allocator, AssignRequest, BlockOwner, ExecutionMode, IpamRecords, audit, block, facts,
};
use tortie_model::{Kind, Resource, StoreKey, StoreValue};
use tortie_store::backend::etcd::keys;
use tortie_store::{StoreClient, StoreConfig};
use tortie_testkit::Etcd;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestBackend {
    Etcd,
    Embedded,
    /// etcd, used like a store without transactions.
    StepByStep,
}

impl TestBackend {
    /// Backends with transactions, for tests that depend on them.
    pub const WITH_TRANSACTIONS: [TestBackend; 2] = [TestBackend::Etcd, TestBackend::Embedded];
    pub const ALL: [TestBackend; 3] = [TestBackend::Etcd, TestBackend::Embedded, TestBackend::StepByStep];
}

/// A running store; stopped and its data deleted on drop.
pub struct IpamTestStore {
    pub client: StoreClient,
    pub endpoint: String,
    mode: ExecutionMode,
    _etcd: Option<Etcd>,
    _data: Option<TempDir>,
    _stop: Option<tokio::sync::oneshot::Sender<()>>,
}

impl IpamTestStore {
    pub async fn start(backend: TestBackend) -> IpamTestStore {
        let (mut etcd, mut data, mut stop) = (None, None, None);
        let endpoint = match backend {
            TestBackend::Etcd | TestBackend::StepByStep => etcd.insert(Etcd::start().unwrap()).endpoint(),
            TestBackend::Embedded => {
                let dir = tempfile::Builder::new().prefix("tortie-ipam-").tempdir().unwrap();
                let listen = "http://127.0.0.1:0".parse().unwrap();
                let server =
                    StoreServer::open(&StoreOptions::new(dir.path().join("db"), vec![listen])).unwrap();
                let endpoint = server.local_addrs()[0].to_string();
                let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
                tokio::spawn(server.serve(async move {
                    let _ = receiver.await;
                }));
                (data, stop) = (Some(dir), Some(sender));
                endpoint
            }
        };
        let client = connect(&endpoint).await;
        let mode = match backend {
            TestBackend::StepByStep => ExecutionMode::Steps,
            TestBackend::Etcd | TestBackend::Embedded => ExecutionMode::Transaction,
        };
        IpamTestStore { client, endpoint, mode, _etcd: etcd, _data: data, _stop: stop }
    }

    /// Starts a store with these pools and with nodes without labels.
    pub async fn with(backend: TestBackend, pools: &[(&str, Json)], nodes: &[&str]) -> IpamTestStore {
        let store = IpamTestStore::start(backend).await;
        for (name, spec) in pools {
            store.put(Kind::IPPool, name, json!({"spec": spec})).await;
        }
        for node in nodes {
            store.put(Kind::Node, node, json!({"spec": {}})).await;
        }
        store
    }

    pub async fn put(&self, kind: Kind, name: &str, mut object: Json) {
        object["metadata"]["name"] = json!(name);
        let resource = Resource::from_store(kind, object).unwrap();
        self.client
            .apply(&StoreKey::resource(kind, "", name), &StoreValue::Resource(resource), None)
            .await
            .unwrap();
    }

    /// Writes an IPAM entry in its stored form, as another client would.
    pub async fn put_raw(&self, path: &str, text: &str) {
        let key = keys::parse(path).unwrap();
        let value = StoreValue::decode(&key, text.as_bytes()).unwrap();
        self.client.apply(&key, &value, None).await.unwrap();
    }

    /// Returns the stored form of an entry.
    pub async fn raw(&self, path: &str) -> Option<String> {
        let entry = self.client.get(&keys::parse(path).unwrap()).await.ok()?;
        Some(String::from_utf8(entry.value.encode()).unwrap())
    }

    pub fn records(&self) -> IpamRecords {
        IpamRecords::new(self.client.clone())
    }

    pub fn allocator(&self, host: &str) -> Allocator {
        Allocator::new(self.client.clone(), BlockOwner::host(host)).with_mode(self.mode)
    }

    pub fn following(&self, host: &str) -> Allocator {
        Allocator::following(self.client.clone(), BlockOwner::host(host)).with_mode(self.mode)
    }

    pub async fn block(&self, cidr: &str) -> Option<tortie_model::ipam::AddressBlock> {
        self.records().block(net(cidr)).await.unwrap().map(|found| found.value)
    }

    /// Asserts that blocks, handles and affinities are consistent, with exactly these addresses in use.
    pub async fn assert_consistent(&self, in_use: &BTreeSet<IpAddr>) {
        let records = self.records();
        let blocks: Vec<_> =
            records.blocks(None).await.unwrap().into_iter().map(|found| found.value).collect();
        let handles: BTreeMap<_, _> =
            records.handles().await.unwrap().into_iter().map(|(id, found)| (id, found.value)).collect();
        let pools: Vec<AllocationPool> =
            records.resources(Kind::IPPool).await.unwrap().iter().filter_map(facts::pool).collect();
        let findings = audit::compare(&blocks, &pools, &handles, in_use, jiff::Timestamp::now());
        assert_eq!(findings.problems(), 0, "{findings:#?}");
        assert_eq!(findings.missing_handles, Vec::<String>::new());
        let mut counted: BTreeMap<String, BTreeMap<String, i64>> = BTreeMap::new();
        for allocation in blocks.iter().flat_map(block::allocations) {
            if let Some(handle) = allocation.handle() {
                let cidr = allocation.block.cidr.to_string();
                *counted.entry(handle.to_owned()).or_default().entry(cidr).or_default() += 1;
            }
        }
        let recorded: BTreeMap<_, _> = handles.into_iter().map(|(id, handle)| (id, handle.block)).collect();
        assert_eq!(recorded, counted, "handles say something else than blocks");
        let claimed: BTreeSet<(String, IpNet)> = records
            .all_affinities(tortie_model::key::AffinityType::Host)
            .await
            .unwrap()
            .into_iter()
            .map(|(owner, cidr, _)| (owner.to_string(), cidr))
            .collect();
        let owned: BTreeSet<(String, IpNet)> =
            blocks.iter().filter_map(|block| Some((block.affinity.clone()?, block.cidr))).collect();
        assert_eq!(claimed, owned, "claims and blocks do not agree");
    }
}

pub async fn connect(endpoint: &str) -> StoreClient {
    StoreClient::connect(&StoreConfig { etcd_endpoints: endpoint.to_owned(), ..StoreConfig::default() })
        .await
        .unwrap()
}

pub fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Returns a request with a handle and with the node as attribute.
pub fn request(handle: &str, node: &str, v4: u32, v6: u32) -> AssignRequest {
    let attributes = BTreeMap::from([("node".to_owned(), node.to_owned())]);
    AssignRequest::new(AddressHolder::new(Some(handle), attributes), v4, v6)
}

pub fn texts(nets: &[IpNet]) -> Vec<String> {
    nets.iter().map(ToString::to_string).collect()
}
