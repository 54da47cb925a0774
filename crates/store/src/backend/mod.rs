//! The stores a client can speak to. Each keeps the names of its protocol to itself: what crosses this line are typed
//! keys and values, opaque revisions, lists in pages and watches from a revision.

pub mod etcd;
// How objects are read and written; the client that sends them follows.
#[allow(dead_code)]
mod kubernetes;

use crate::{Config, Result};
pub use etcd::Limits;

#[derive(Clone, Debug)]
pub(crate) enum Backend {
    Etcd(etcd::Etcd),
}

impl Backend {
    pub async fn connect(config: &Config, limits: Limits) -> Result<Backend> {
        Ok(Backend::Etcd(etcd::Etcd::connect(&config.target()?, limits).await?))
    }
}
