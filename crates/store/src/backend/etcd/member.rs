//! A member of the cluster and the connection to it.

use super::channel::{Dialler, dialler};
use super::limits::Limits;
use crate::Result;
use crate::config::Endpoint;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio_rustls::rustls::ClientConfig;
use tonic::transport::Channel;

/// A connection and its number, which distinguishes it from its successors.
#[derive(Clone)]
pub(crate) struct Connection {
    pub channel: Channel,
    number: u64,
}

pub(crate) struct Member {
    pub endpoint: Endpoint,
    dialler: Dialler,
    connection: Mutex<Connection>,
}

impl Member {
    pub fn new(
        endpoint: &Endpoint,
        tls: &Arc<ClientConfig>,
        dial: Duration,
        limits: &Limits,
    ) -> Result<Member> {
        let dialler = dialler(endpoint, tls, dial, limits)?;
        let connection = Mutex::new(Connection { channel: dialler.channel(), number: 0 });
        Ok(Member { endpoint: endpoint.clone(), dialler, connection })
    }

    pub fn connection(&self) -> Connection {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Drops a connection that no longer delivers responses; the next call opens a new one. Such a connection is not
    /// always closed: a firewall that dropped its state, or a host that vanished, sends nothing.
    pub fn discard(&self, dead: &Connection) {
        let mut current = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        if current.number == dead.number {
            *current = Connection { channel: self.dialler.channel(), number: dead.number.wrapping_add(1) };
        }
    }
}
