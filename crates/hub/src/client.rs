//! The feed of a node from hubs: it finds one, follows it, and goes to another when it ends.

mod discovery;
mod follow;

pub use discovery::{AddressError, Hubs, Service};
pub use follow::follow;

use crate::tls::ClientTls;
use std::sync::Arc;
use std::time::Duration;

/// How hubs are reached.
#[derive(Clone, Debug)]
pub struct Options {
    /// The node's name, for the hub's log.
    pub node: String,
    pub hubs: Hubs,
    /// To connect.
    pub dial: Duration,
    /// Without a word of the hub, which pings, it is not there any more.
    pub read: Duration,
    pub write: Duration,
    pub tls: Option<Arc<ClientTls>>,
}

impl Options {
    pub fn new(node: &str, hubs: Hubs) -> Options {
        Options {
            node: node.to_owned(),
            hubs,
            dial: Duration::from_secs(10),
            read: Duration::from_secs(30),
            write: Duration::from_secs(10),
            tls: None,
        }
    }
}
