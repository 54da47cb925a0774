//! Servers for tests: real etcd as a process, and the embedded store in this process. Both are removed when the test
//! ends.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod disk;

use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::oneshot;
use tonic::transport::{Channel, Endpoint};
use tortie_datastore::{AutoCompaction, StoreOptions, StoreServer};

/// The embedded store, served by this process.
pub struct EmbeddedDatastore {
    pub url: String,
    stop: Option<oneshot::Sender<()>>,
    served: Option<tokio::task::JoinHandle<()>>,
    pub dir: TempDir,
}

impl EmbeddedDatastore {
    pub fn start() -> EmbeddedDatastore {
        EmbeddedDatastore::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut StoreOptions)) -> EmbeddedDatastore {
        let dir = TempDir::new().unwrap();
        let mut options = StoreOptions::new(dir.path(), vec!["http://127.0.0.1:0".parse().unwrap()]);
        options.auto_compaction = AutoCompaction::Off;
        change(&mut options);
        let server = StoreServer::open(&options).unwrap();
        let url = server.local_addrs()[0].to_string();
        let (stop, stopped) = oneshot::channel::<()>();
        let served = tokio::spawn(async move {
            server.serve(async { drop(stopped.await) }).await.unwrap();
        });
        EmbeddedDatastore { url, stop: Some(stop), served: Some(served), dir }
    }

    /// Stops the server and returns the directory.
    pub async fn stop(mut self) -> TempDir {
        drop(self.stop.take());
        if let Some(served) = self.served.take() {
            served.await.unwrap();
        }
        self.dir
    }
}

pub async fn connect(url: &str) -> Channel {
    let endpoint = Endpoint::from_shared(url.to_owned()).unwrap();
    for _ in 0..200 {
        if let Ok(channel) = endpoint.connect().await {
            return channel;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("nothing answers on {url}");
}

/// Returns the seed from `TORTIE_SEED`: a number, or `random` as in `make soak`; printed so that a failure can be
/// reproduced. By default the history is always the same, so that a change is not judged by chance; new histories are
/// tried in soak runs.
pub fn seed() -> u64 {
    let seed = match std::env::var("TORTIE_SEED") {
        Ok(text) if text == "random" => rand::random(),
        Ok(text) => text.parse().expect("TORTIE_SEED is a number or random"),
        Err(_) => 1,
    };
    println!("TORTIE_SEED={seed}");
    seed
}
