//! Test environment: a store, hubs on it, and nodes that record the events they receive.

use serde_json::json;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tortie_datastore::{ListenAddress, StoreServer};
use tortie_hub::client::{self, HubLocations};
use tortie_hub::server::{HubServer, HubServerOptions};
use tortie_hub::tls::ServerTls;
use tortie_model::{API_VERSION, FeedEvent, KeyRange, Kind, Resource, StoreKey, StoreValue};
use tortie_store::{StoreClient, StoreConfig};
use tortie_testkit::{Etcd, eventually_async, free_port};

pub const TEST_KINDS: [Kind; 2] = [Kind::Tier, Kind::GlobalNetworkSet];

pub fn ranges() -> Vec<KeyRange> {
    TEST_KINDS.map(KeyRange::all).to_vec()
}

/// A real store, either etcd or the embedded one.
pub struct HubTestStore {
    pub client: StoreClient,
    etcd: Option<Etcd>,
    embedded: Option<EmbeddedTestStore>,
}

struct EmbeddedTestStore {
    _dir: tempfile::TempDir,
    _stop: oneshot::Sender<()>,
    _serving: JoinHandle<()>,
}

impl HubTestStore {
    pub async fn etcd() -> HubTestStore {
        let etcd = Etcd::start().expect("etcd");
        let client = StoreClient::connect(&StoreConfig::at(etcd.endpoint())).await.unwrap();
        HubTestStore { client, etcd: Some(etcd), embedded: None }
    }

    pub async fn embedded() -> HubTestStore {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let options = tortie_datastore::StoreOptions::new(
            dir.path().join("data"),
            vec![ListenAddress::Unix(socket.clone())],
        );
        let server = StoreServer::open(&options).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::spawn(async move {
            let stopped = async move {
                let _ = stopped.await;
            };
            server.serve(stopped).await.unwrap();
        });
        let client =
            StoreClient::connect(&StoreConfig::at(format!("unix://{}", socket.display()))).await.unwrap();
        HubTestStore {
            client,
            etcd: None,
            embedded: Some(EmbeddedTestStore { _dir: dir, _stop: stop, _serving: serving }),
        }
    }

    /// Returns a label for assertion messages.
    pub fn name(&self) -> &'static str {
        match (&self.etcd, &self.embedded) {
            (Some(_), _) => "etcd",
            _ => "the embedded store",
        }
    }

    pub async fn put(&self, name: &str) {
        self.put_with(name, "").await;
    }

    /// Writes a tier with an annotation of this text, to give the entry a size.
    pub async fn put_with(&self, name: &str, text: &str) {
        let metadata = json!({"name": name, "annotations": {"text": text}});
        let object = json!({"apiVersion": API_VERSION, "kind": "Tier", "metadata": metadata, "spec": {}});
        let value = StoreValue::Resource(Resource::from_user(object).unwrap());
        self.client.apply(&tier(name), &value, None).await.unwrap();
    }

    pub async fn delete(&self, name: &str) {
        self.client.delete(&tier(name), None).await.unwrap();
    }

    /// Returns key and revision of all entries that nodes should have.
    pub async fn content(&self) -> BTreeMap<StoreKey, String> {
        let mut content = BTreeMap::new();
        for range in ranges() {
            for entry in self.client.list(&range).await.unwrap().entries {
                content.insert(entry.key, entry.revision.to_string());
            }
        }
        content
    }
}

pub fn tier(name: &str) -> StoreKey {
    StoreKey::resource(Kind::Tier, "", name)
}

/// A running hub; dropping it has the effect of the end of its process.
pub struct RunningHub {
    pub hub: HubServer,
    pub address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl RunningHub {
    pub async fn start(store: &HubTestStore) -> RunningHub {
        // An own port, so that it is still free when the hub restarts.
        let address = format!("127.0.0.1:{}", free_port().unwrap());
        RunningHub::at(store, &address, HubServerOptions::default()).await
    }

    pub async fn at(store: &HubTestStore, address: &str, options: HubServerOptions) -> RunningHub {
        RunningHub::with(store, address, options, None).await
    }

    pub async fn with(
        store: &HubTestStore,
        address: &str,
        options: HubServerOptions,
        tls: Option<ServerTls>,
    ) -> RunningHub {
        let hub = HubServer::new(&ranges(), options);
        // After a restart on the same port, old connections may still occupy it.
        let listener = loop {
            match TcpListener::bind(address).await {
                Ok(listener) => break listener,
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
            }
        };
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        let feed = tortie_sync::follow_with_progress(&store.client, ranges(), || ());
        let (following, serving) = (hub.clone(), hub.clone());
        tasks.spawn(async move { following.follow(feed).await });
        tasks.spawn(async move { serving.serve(listener, tls).await });
        hub.in_sync().await;
        RunningHub { hub, address, _tasks: tasks }
    }
}

/// Events and entries that a node has received.
#[derive(Debug, Default)]
pub struct ReceivedEvents {
    pub content: BTreeMap<StoreKey, String>,
    in_sync: bool,
    /// Event labels: `+name`, `-name`, `in sync`, `lost`, `back`.
    pub words: Vec<String>,
}

pub struct TestNode {
    received: Arc<Mutex<ReceivedEvents>>,
    task: JoinHandle<()>,
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl TestNode {
    pub fn follow(hubs: &[&RunningHub]) -> TestNode {
        let addresses: Vec<String> = hubs.iter().map(|hub| hub.address.to_string()).collect();
        TestNode::at(&addresses.join(","))
    }

    pub fn at(addresses: &str) -> TestNode {
        TestNode::with(client::HubClientOptions::new("n1", HubLocations::parse(addresses).unwrap()))
    }

    pub fn with(options: client::HubClientOptions) -> TestNode {
        let mut feed = client::follow(options, ranges());
        let received: Arc<Mutex<ReceivedEvents>> = Arc::default();
        let receiver = received.clone();
        let task = tokio::spawn(async move {
            while let Some(event) = feed.recv().await {
                receiver.lock().unwrap().hear(event);
            }
        });
        TestNode { received, task }
    }

    pub fn received(&self) -> MutexGuard<'_, ReceivedEvents> {
        self.received.lock().unwrap()
    }

    /// Waits until the node has the content of the store.
    pub async fn knows(&self, store: &HubTestStore) {
        let content = store.content().await;
        eventually_async("the node knows what the store has", async || {
            let received = self.received();
            received.content == content && received.in_sync
        })
        .await;
    }

    /// Returns the events received since the last call, sorted.
    pub fn news(&self) -> Vec<String> {
        let mut words = std::mem::take(&mut self.received().words);
        words.sort();
        words
    }
}

impl ReceivedEvents {
    fn hear(&mut self, event: FeedEvent) {
        let name = |key: &StoreKey| match key {
            StoreKey::Resource { name, .. } => name.clone(),
            other => panic!("{other}"),
        };
        let word = match event {
            FeedEvent::Put { key, revision, .. } => {
                let word = format!("+{}", name(&key));
                self.content.insert(key, revision.to_string());
                word
            }
            FeedEvent::Delete { key, .. } => {
                assert!(self.content.remove(&key).is_some(), "{key} was not there");
                format!("-{}", name(&key))
            }
            FeedEvent::Unreadable { key, .. } => format!("?{}", name(&key)),
            FeedEvent::InSync => {
                self.in_sync = true;
                "in sync".to_owned()
            }
            FeedEvent::ConnectionLost { .. } => "lost".to_owned(),
            FeedEvent::ConnectionBack { .. } => "back".to_owned(),
        };
        self.words.push(word);
    }
}

/// Defines tests that run once on every kind of store.
#[macro_export]
macro_rules! on_each_store {
    ($($name:ident)*) => {$(
        mod $name {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_etcd() {
                super::$name($crate::world::HubTestStore::etcd().await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_the_embedded_store() {
                super::$name($crate::world::HubTestStore::embedded().await).await;
            }
        }
    )*};
}
