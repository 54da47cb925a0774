//! Client side of the hub protocol: finds a hub, follows it, and fails over to another hub when the connection ends.

mod discovery;
mod follow;

pub use discovery::{HubAddressError, HubDiscoveryError, HubLocations, HubService};
pub use follow::follow;

use crate::tls::ClientTls;
use std::sync::Arc;
use std::time::Duration;

/// Connection options of a hub client.
#[derive(Clone, Debug)]
pub struct HubClientOptions {
    /// Node name, for the hub's log.
    pub node: String,
    pub hubs: HubLocations,
    /// Connect timeout.
    pub dial: Duration,
    /// Read timeout. The hub sends pings, so a longer silence means that the connection is dead.
    pub read: Duration,
    pub write: Duration,
    pub tls: Option<Arc<ClientTls>>,
}

impl HubClientOptions {
    pub fn new(node: &str, hubs: HubLocations) -> HubClientOptions {
        HubClientOptions {
            node: node.to_owned(),
            hubs,
            dial: Duration::from_secs(10),
            read: Duration::from_secs(30),
            write: Duration::from_secs(10),
            tls: None,
        }
    }
}
