//! The endpoints of an etcd cluster and the selection of one that responds.
//!
//! Calls go to one endpoint until it fails, then to the next. A write that may already have been applied is not
//! repeated; a read is.

use super::auth::EtcdAuth;
use super::failure::EtcdFailure;
use super::member::{EtcdMember, MemberConnection};
use super::tls::client_config;
use crate::config::{EtcdEndpoint, EtcdTarget};
use crate::{StoreError, StoreLimits, StoreResult};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

/// Whether a call may be repeated if it may already have been executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EtcdRetryPolicy {
    Always,
    IfUnsent,
}

pub(crate) struct EtcdCluster {
    members: Vec<Arc<EtcdMember>>,
    /// Index of the member that responded last.
    current: AtomicUsize,
    auth: Option<EtcdAuth>,
    pub limits: StoreLimits,
}

impl EtcdCluster {
    pub fn new(
        target: &EtcdTarget,
        endpoints: &[EtcdEndpoint],
        limits: StoreLimits,
    ) -> StoreResult<EtcdCluster> {
        let used = endpoints.iter().any(|endpoint| matches!(endpoint, EtcdEndpoint::Tcp { tls: true, .. }));
        let tls = client_config(&target.tls, &target.tls_policy, used)?;
        let count = u32::try_from(endpoints.len()).unwrap_or(u32::MAX).max(1);
        let dial = (limits.dial / count).max(limits.dial.min(Duration::from_secs(2)));
        let mut members = Vec::new();
        for endpoint in endpoints {
            members.push(Arc::new(EtcdMember::new(endpoint, &tls, dial, &limits)?));
        }
        Ok(EtcdCluster {
            members,
            current: AtomicUsize::new(0),
            auth: target.credentials.clone().map(EtcdAuth::new),
            limits,
        })
    }

    /// Sends `message` to a member that responds, within the time limit of one request.
    pub async fn call<M, R, F, S>(&self, retry: EtcdRetryPolicy, message: M, send: S) -> StoreResult<R>
    where
        M: Clone,
        S: Fn(Channel, Request<M>) -> F,
        F: Future<Output = std::result::Result<Response<R>, Status>>,
    {
        self.call_within(self.limits.request, retry, message, send).await
    }

    /// Like [`EtcdCluster::call`] with another time limit.
    pub async fn call_within<M, R, F, S>(
        &self,
        limit: Duration,
        retry: EtcdRetryPolicy,
        message: M,
        send: S,
    ) -> StoreResult<R>
    where
        M: Clone,
        S: Fn(Channel, Request<M>) -> F,
        F: Future<Output = std::result::Result<Response<R>, Status>>,
    {
        let deadline = Instant::now() + limit;
        let first = self.current.load(Ordering::Relaxed);
        let count = self.members.len();
        let mut tried = Vec::new();
        let mut step = 0;
        let mut reopened = false;
        while step < count {
            let index = (first + step) % count;
            let Some(member) = self.members.get(index) else { break };
            let left = deadline.saturating_duration_since(Instant::now());
            // Divide the remaining time, so that the other members can be tried if this one does not respond.
            let share = left / u32::try_from(count - step).unwrap_or(1).max(1);
            let connection = member.connection();
            let attempt = self.attempt(member, &connection, &message, &send);
            let failure = match tokio::time::timeout(share, attempt).await {
                Ok(Ok(answer)) => {
                    self.current.store(index, Ordering::Relaxed);
                    return Ok(answer);
                }
                Ok(Err(failure)) => failure,
                Err(_) => {
                    member.discard(&connection);
                    EtcdFailure::silent(&member.endpoint, share)
                }
            };
            match &failure {
                EtcdFailure::Refused(_) => return Err(failure.into_error()),
                // Usually a connection that was closed while idle: retry once on a new one.
                EtcdFailure::Stale(_) if !reopened => {
                    reopened = true;
                    continue;
                }
                EtcdFailure::Lost(_) if retry == EtcdRetryPolicy::Always && !reopened => {
                    reopened = true;
                    continue;
                }
                _ => self.current.store((index + 1) % count, Ordering::Relaxed),
            }
            let unsent = matches!(failure, EtcdFailure::NotSent(_) | EtcdFailure::Stale(_));
            let settled = retry == EtcdRetryPolicy::IfUnsent && !unsent;
            let error = failure.into_error();
            if settled {
                return Err(StoreError::Datastore(format!(
                    "{error}. The write may have been carried out or not"
                )));
            }
            tried.push(error);
            step += 1;
        }
        Err(all_failed(tried))
    }

    async fn attempt<M, R, F, S>(
        &self,
        member: &EtcdMember,
        connection: &MemberConnection,
        message: &M,
        send: &S,
    ) -> std::result::Result<R, EtcdFailure>
    where
        M: Clone,
        S: Fn(Channel, Request<M>) -> F,
        F: Future<Output = std::result::Result<Response<R>, Status>>,
    {
        let mut renewed = false;
        loop {
            let mut request = Request::new(message.clone());
            let token = self.authorise(member, connection, &mut request).await?;
            match send(connection.channel.clone(), request).await {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) => match (&self.auth, token) {
                    (Some(auth), Some(token)) if !renewed && EtcdAuth::is_stale(&status) => {
                        auth.refused(&token).await;
                        renewed = true;
                    }
                    _ => return Err(EtcdFailure::of(&member.endpoint, status)),
                },
            }
        }
    }

    /// Adds the authentication token to a request, if credentials are configured, and returns it.
    pub async fn authorise<M>(
        &self,
        member: &EtcdMember,
        connection: &MemberConnection,
        request: &mut Request<M>,
    ) -> std::result::Result<Option<String>, EtcdFailure> {
        let Some(auth) = &self.auth else { return Ok(None) };
        let token = auth
            .token(&connection.channel)
            .await
            .map_err(|status| EtcdFailure::of_authentication(&member.endpoint, status))?;
        if !token.is_empty()
            && let Ok(value) = MetadataValue::try_from(token.as_str())
        {
            request.metadata_mut().insert("token", value);
        }
        Ok(Some(token))
    }

    /// Returns the member that calls currently go to.
    pub fn current(&self) -> Option<Arc<EtcdMember>> {
        self.members.get(self.current.load(Ordering::Relaxed) % self.members.len().max(1)).cloned()
    }

    /// Switches to the next member after a failure outside of `call`, for example of a watch.
    pub fn leave(&self, member: &EtcdMember) {
        if let Some(index) = self.members.iter().position(|other| std::ptr::eq(&**other, member)) {
            let next = (index + 1) % self.members.len().max(1);
            let _ = self.current.compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    pub async fn forget_token(&self, token: &str) {
        if let Some(auth) = &self.auth {
            auth.refused(token).await;
        }
    }
}

fn all_failed(mut errors: Vec<StoreError>) -> StoreError {
    match errors.len() {
        0 => StoreError::Config("no etcd endpoints specified".into()),
        1 => errors.swap_remove(0),
        count => {
            let lines: Vec<String> = errors.iter().map(|error| format!("\n-  {error}")).collect();
            StoreError::Datastore(format!("none of the {count} endpoints answers:{}", lines.concat()))
        }
    }
}

impl fmt::Debug for EtcdCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.members.iter().map(|member| member.endpoint.to_string())).finish()
    }
}
