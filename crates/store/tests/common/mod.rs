//! The stores the tests run against, and a few words to write tests in.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::{Value as Json, json};
use std::time::Duration;
use tortie_model::{API_VERSION, Kind, Resource};
use tortie_store::{Client, Config, Event, Limits, Resources, Watch};
use tortie_testkit::Etcd;

/// Ends a test that hangs, with a word about where.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.unwrap_or_else(|_| panic!("{what} hangs"))
}

pub fn etcd() -> Etcd {
    Etcd::start().expect("etcd")
}

pub async fn client(endpoints: &str) -> Client {
    Client::connect(&Config::at(endpoints)).await.unwrap()
}

/// A client that gives up soon.
pub async fn hasty(config: &Config) -> Client {
    let limits =
        Limits { dial: Duration::from_secs(2), request: Duration::from_secs(3), ..Limits::default() };
    Client::connect_with(config, limits).await.unwrap()
}

pub async fn resources(endpoints: &str) -> Resources {
    Resources::new(client(endpoints).await)
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

pub async fn next(watch: &mut Watch) -> Event {
    within("the watch", watch.next()).await.expect("an event")
}
