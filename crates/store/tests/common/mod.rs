//! Test fixtures: stores, proxies and helper functions.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod fault_proxy;
pub mod rules;

use serde_json::{Value as Json, json};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tonic::transport::{Channel, Endpoint};
use tortie_datastore::{ListenAddress, StoreOptions, StoreServer};
use tortie_etcd_proto::etcdserverpb::kv_client::KvClient;
use tortie_etcd_proto::etcdserverpb::{CompactionRequest, DeleteRangeRequest, PutRequest, RangeRequest};
use tortie_model::{API_VERSION, Kind, Resource};
use tortie_store::{ResourceClient, Revision, StoreClient, StoreConfig, StoreEvent, StoreLimits, StoreWatch};
use tortie_testkit::Etcd;

/// Fails a test that hangs, naming the operation.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(180), future).await.unwrap_or_else(|_| panic!("{what} hangs"))
}

pub fn etcd() -> Etcd {
    Etcd::start().expect("etcd")
}

pub async fn client(endpoints: &str) -> StoreClient {
    StoreClient::connect(&StoreConfig::at(endpoints)).await.unwrap()
}

/// Creates a client with short timeouts.
pub async fn hasty(config: &StoreConfig) -> StoreClient {
    let limits = StoreLimits {
        dial: Duration::from_secs(6),
        request: Duration::from_secs(9),
        ..StoreLimits::default()
    };
    StoreClient::connect_with(config, limits).await.unwrap()
}

pub async fn resources(endpoints: &str) -> ResourceClient {
    ResourceClient::new(client(endpoints).await)
}

pub fn object(kind: Kind, namespace: &str, name: &str, spec: Json) -> Resource {
    let mut metadata = json!({"name": name});
    if !namespace.is_empty() {
        metadata["namespace"] = namespace.into();
    }
    Resource::from_user(json!({
        "apiVersion": API_VERSION, "kind": kind.name(), "metadata": metadata, "spec": spec,
    }))
    .unwrap()
}

pub async fn next(watch: &mut StoreWatch) -> StoreEvent {
    within("the watch", watch.next()).await.expect("an event")
}

/// A store that can be stopped and restarted.
pub enum TestStore {
    Etcd(Etcd),
    Embedded(EmbeddedStore),
}

impl TestStore {
    pub async fn etcd() -> TestStore {
        TestStore::Etcd(Etcd::start().expect("etcd"))
    }

    pub async fn embedded() -> TestStore {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("home");
        let mut store = EmbeddedStore { dir, socket, running: None };
        store.start().await;
        TestStore::Embedded(store)
    }

    pub fn endpoint(&self) -> String {
        match self {
            TestStore::Etcd(etcd) => etcd.endpoint(),
            TestStore::Embedded(store) => format!("unix://{}", store.socket.display()),
        }
    }

    pub async fn kill(&mut self) {
        match self {
            TestStore::Etcd(etcd) => etcd.kill(),
            TestStore::Embedded(store) => store.stop().await,
        }
    }

    pub async fn restart(&mut self) {
        match self {
            TestStore::Etcd(etcd) => etcd.restart().expect("etcd again"),
            TestStore::Embedded(store) => store.start().await,
        }
    }

    /// Restarts the store with the same data at another address, where existing clients do not find it.
    pub async fn restart_elsewhere(&mut self) {
        match self {
            TestStore::Etcd(etcd) => etcd.restart_elsewhere().expect("etcd elsewhere"),
            TestStore::Embedded(store) => {
                store.socket = store.dir.path().join("elsewhere");
                store.start().await;
            }
        }
    }

    pub async fn restart_at_home(&mut self) {
        match self {
            TestStore::Etcd(etcd) => etcd.restart_at_home().expect("etcd at home"),
            TestStore::Embedded(store) => {
                store.socket = store.dir.path().join("home");
                store.start().await;
            }
        }
    }

    /// Copies the data, for [`TestStore::restore`].
    pub async fn backup(&mut self) {
        self.kill().await;
        copy(&self.data(), &self.data().with_extension("backup"));
        self.restart().await;
    }

    /// Restores the backup.
    pub async fn restore(&mut self) {
        self.kill().await;
        std::fs::remove_dir_all(self.data()).unwrap();
        copy(&self.data().with_extension("backup"), &self.data());
        self.restart().await;
    }

    fn data(&self) -> PathBuf {
        match self {
            TestStore::Etcd(etcd) => etcd.data_dir(),
            TestStore::Embedded(store) => store.dir.path().join("data"),
        }
    }

    pub async fn client(&self) -> StoreClient {
        client(&self.endpoint()).await
    }

    pub async fn resources(&self) -> ResourceClient {
        ResourceClient::new(self.client().await)
    }

    async fn kv(&self) -> KvClient<Channel> {
        let endpoint = self.endpoint();
        let channel = match endpoint.strip_prefix("unix://") {
            Some(path) => Endpoint::try_from(format!("unix:{path}")).unwrap().connect().await.unwrap(),
            None => Endpoint::try_from(endpoint).unwrap().connect().await.unwrap(),
        };
        KvClient::new(channel)
    }

    /// Returns the raw value of a key.
    pub async fn raw(&self, key: &str) -> Option<String> {
        let request = RangeRequest { key: key.to_owned().into(), ..Default::default() };
        let kvs = self.kv().await.range(request).await.unwrap().into_inner().kvs;
        kvs.into_iter().next().map(|kv| String::from_utf8(kv.value.to_vec()).unwrap())
    }

    /// Writes a raw value, as another program would.
    pub async fn put_raw(&self, key: &str, value: &str) {
        let request =
            PutRequest { key: key.to_owned().into(), value: value.to_owned().into(), ..Default::default() };
        self.kv().await.put(request).await.unwrap();
    }

    pub async fn delete_raw(&self, key: &str) {
        let request = DeleteRangeRequest { key: key.to_owned().into(), ..Default::default() };
        self.kv().await.delete_range(request).await.unwrap();
    }

    /// Returns whether the state at a revision is still available.
    pub async fn remembers(&self, revision: &Revision) -> bool {
        let revision = i64::try_from(revision.number().unwrap()).unwrap();
        let range = RangeRequest { key: "/".into(), revision, ..Default::default() };
        match self.kv().await.range(range).await {
            Ok(_) => true,
            Err(status) if status.message().contains("has been compacted") => false,
            Err(status) => panic!("{status}"),
        }
    }

    /// Compacts the whole history.
    pub async fn compact(&self) {
        let mut kv = self.kv().await;
        let range = RangeRequest { key: "/".into(), ..Default::default() };
        let revision = kv.range(range).await.unwrap().into_inner().header.unwrap().revision;
        kv.compact(CompactionRequest { revision, physical: true }).await.unwrap();
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), &target).unwrap();
        }
    }
}

/// The embedded store, running in this process.
pub struct EmbeddedStore {
    dir: tempfile::TempDir,
    socket: PathBuf,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl EmbeddedStore {
    async fn start(&mut self) {
        self.stop().await;
        let options =
            StoreOptions::new(self.dir.path().join("data"), vec![ListenAddress::Unix(self.socket.clone())]);
        let server = StoreServer::open(&options).expect("the embedded store");
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(async move {
            let stopped = async move {
                let _ = stopped.await;
            };
            server.serve(stopped).await.expect("the embedded store");
        });
        self.running = Some((stop, serving));
    }

    async fn stop(&mut self) {
        if let Some((stop, serving)) = self.running.take() {
            let _ = stop.send(());
            serving.await.expect("the embedded store");
        }
    }
}

/// Runs a test on every store.
#[macro_export]
macro_rules! on_each_store {
    ($($name:ident)*) => {$(
        mod $name {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_etcd() {
                super::$name($crate::common::TestStore::etcd().await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_the_embedded_store() {
                super::$name($crate::common::TestStore::embedded().await).await;
            }
        }
    )*};
}

/// A TCP proxy to a store whose connections can be frozen.
pub struct FreezableProxy {
    pub endpoint: String,
    frozen: tokio::sync::watch::Sender<u32>,
    task: JoinHandle<()>,
}

impl FreezableProxy {
    pub async fn start(target: &str) -> FreezableProxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (frozen, freezes) = tokio::sync::watch::channel(0);
        let target = target.to_owned();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let mut freezes = freezes.clone();
                freezes.mark_unchanged();
                let target = target.clone();
                connections.spawn(async move {
                    let mut carried = std::pin::pin!(carry(client, &target));
                    tokio::select! {
                        () = &mut carried => {}
                        // Holds both ends open without reading or writing.
                        _ = freezes.changed() => std::future::pending::<()>().await,
                    }
                });
            }
        });
        FreezableProxy { endpoint, frozen, task }
    }

    /// Stops forwarding on all open connections; new ones work.
    pub fn freeze(&self) {
        self.frozen.send_modify(|count| *count += 1);
    }
}

impl Drop for FreezableProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(mut client: TcpStream, target: &str) {
    let _ = match target.strip_prefix("unix://") {
        Some(path) => copy_bidirectional(&mut client, &mut UnixStream::connect(path).await.unwrap()).await,
        None => {
            let address = target.trim_start_matches("http://");
            copy_bidirectional(&mut client, &mut TcpStream::connect(address).await.unwrap()).await
        }
    };
}
