//! A member of the cluster and the connection to it.

use super::channel::{EndpointDialler, build_dialler};
use crate::config::EtcdEndpoint;
use crate::{StoreLimits, StoreResult};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio_rustls::rustls::ClientConfig;
use tonic::transport::Channel;

/// A connection and its number, which distinguishes it from its successors.
#[derive(Clone)]
pub(crate) struct MemberConnection {
    pub channel: Channel,
    number: u64,
}

pub(crate) struct EtcdMember {
    pub endpoint: EtcdEndpoint,
    dialler: EndpointDialler,
    connection: Mutex<MemberConnection>,
}

impl EtcdMember {
    pub fn new(
        endpoint: &EtcdEndpoint,
        tls: &Arc<ClientConfig>,
        dial: Duration,
        limits: &StoreLimits,
    ) -> StoreResult<EtcdMember> {
        let dialler = build_dialler(endpoint, tls, dial, limits)?;
        let connection = Mutex::new(MemberConnection { channel: dialler.channel(), number: 0 });
        Ok(EtcdMember { endpoint: endpoint.clone(), dialler, connection })
    }

    pub fn connection(&self) -> MemberConnection {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Drops a connection that no longer delivers responses; the next call opens a new one. Such a connection is not
    /// always closed: a firewall that dropped its state, or a host that vanished, sends nothing.
    pub fn discard(&self, dead: &MemberConnection) {
        let mut current = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        if current.number == dead.number {
            *current =
                MemberConnection { channel: self.dialler.channel(), number: dead.number.wrapping_add(1) };
        }
    }
}
