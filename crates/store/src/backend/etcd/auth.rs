//! Authentication with user and password: fetches a token, and a new one when the server rejects it.

use crate::config::EtcdCredentials;
use tokio::sync::Mutex;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tortie_etcd_proto::etcdserverpb::AuthenticateRequest;
use tortie_etcd_proto::etcdserverpb::auth_client::AuthClient;

#[derive(Debug)]
pub struct EtcdAuth {
    credentials: EtcdCredentials,
    /// Locked while a token is fetched, so that concurrent rejected calls fetch only one.
    token: Mutex<Option<String>>,
}

impl EtcdAuth {
    pub fn new(credentials: EtcdCredentials) -> EtcdAuth {
        EtcdAuth { credentials, token: Mutex::new(None) }
    }

    /// Returns the token to send; empty if authentication is disabled on the server.
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
            // The only precondition of this call is that authentication is enabled.
            Err(status) if status.code() == Code::FailedPrecondition => String::new(),
            Err(status) => return Err(status),
        };
        *held = Some(token.clone());
        Ok(token)
    }

    /// Discards a token that the server rejected, unless another call has replaced it already.
    pub async fn refused(&self, token: &str) {
        let mut held = self.token.lock().await;
        if held.as_deref() == Some(token) {
            *held = None;
        }
    }

    /// Returns whether a new token may help. etcd reports a token of an older revision of the users, and one that is
    /// missing because authentication was disabled before, as an invalid argument. Other invalid arguments are rejected
    /// again with the new token; a rejected request was not executed, so it can be repeated.
    pub fn is_stale(status: &Status) -> bool {
        matches!(status.code(), Code::Unauthenticated | Code::InvalidArgument)
    }
}
