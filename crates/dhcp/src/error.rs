//! Errors that end the server.

use std::io;
use std::net::SocketAddr;

#[derive(Debug, thiserror::Error)]
pub enum DhcpError {
    #[error("{option} = {value:?}: expected {expected}")]
    Option { option: &'static str, value: String, expected: &'static str },
    #[error(transparent)]
    Store(#[from] tortie_store::StoreError),
    #[error(transparent)]
    Kernel(#[from] tortie_dataplane::DataplaneError),
    #[error("the datastore is the Kubernetes API; DHCP needs the etcd of OpenStack: set ETCD_ENDPOINTS")]
    NotEtcd,
    #[error("cannot handle signals: {0}")]
    Signals(io::Error),
    #[error("cannot listen on {address} for metrics and health: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("cannot start: {0}")]
    Runtime(io::Error),
    #[error("the datastore feed ended; restart the server (machines keep their leases)")]
    Feed,
}
