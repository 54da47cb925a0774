//! User and password: a token per connection, renewed when the server no longer takes it.

use crate::config::Credentials;
use tokio::sync::Mutex;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tortie_etcd_proto::etcdserverpb::AuthenticateRequest;
use tortie_etcd_proto::etcdserverpb::auth_client::AuthClient;

#[derive(Debug)]
pub struct Auth {
    credentials: Credentials,
    /// Held while a new token is fetched, so that a burst of refused calls asks once.
    token: Mutex<Option<String>>,
}

impl Auth {
    pub fn new(credentials: Credentials) -> Auth {
        Auth { credentials, token: Mutex::new(None) }
    }

    /// The token to send; empty when the server has authentication switched off.
    pub async fn token(&self, channel: &Channel) -> Result<String, Status> {
        let mut held = self.token.lock().await;
        if let Some(token) = held.as_ref() {
            return Ok(token.clone());
        }
        let request = AuthenticateRequest {
            name: self.credentials.username.clone(),
            password: self.credentials.password.clone(),
        };
        let token = match AuthClient::new(channel.clone()).authenticate(request).await {
            Ok(answer) => answer.into_inner().token,
            Err(status) if status.message().contains("authentication is not enabled") => String::new(),
            Err(status) => return Err(status),
        };
        *held = Some(token.clone());
        Ok(token)
    }

    /// Forgets a token the server refused, unless another call has replaced it already.
    pub async fn refused(&self, token: &str) {
        let mut held = self.token.lock().await;
        if held.as_deref() == Some(token) {
            *held = None;
        }
    }

    /// Whether a new token may help.
    pub fn is_stale(status: &Status) -> bool {
        (status.code() == Code::Unauthenticated && status.message().contains("invalid auth token"))
            || status.message().contains("revision of auth store is old")
            // Authentication was switched on after the server had said it was off.
            || status.message().contains("user name is empty")
    }
}
