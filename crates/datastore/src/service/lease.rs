//! The lease service.

use super::auth::RequestCaller;
use super::{CollectedResponse, GrpcResult, StoreService, unexpected};
use crate::auth::KeyAccess;
use crate::core::{WriteRequest, WriteResponse};
use crate::key_span::KeySpan;
use crate::lessor::{MAX_TTL_SECONDS, MIN_TTL_SECONDS};
use crate::rejection::RequestRejection;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use std::pin::Pin;
use std::time::Instant;
use tonic::{Request, Response, Status, Streaming};
use tortie_etcd_proto::etcdserverpb::lease_server::Lease;
use tortie_etcd_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseLeasesRequest,
    LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus, LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse,
};

impl StoreService {
    /// Checks the permission for all keys of a lease: revoking it deletes them, and listing them reads them.
    async fn check_lease_keys(
        &self,
        caller: &RequestCaller,
        access: KeyAccess,
        id: i64,
    ) -> Result<(), Status> {
        if caller.check_root().is_ok() {
            return Ok(());
        }
        for key in self.lease_keys(id).await?.answer {
            caller.check(access, &KeySpan::Key(key.into()))?;
        }
        Ok(())
    }

    /// Checks whether the client may attach keys to the leases. A key is deleted with its lease, so the client must
    /// be allowed to revoke the lease, as in etcd.
    pub async fn check_leases(
        &self,
        caller: &RequestCaller,
        leases: impl IntoIterator<Item = i64>,
    ) -> Result<(), Status> {
        for id in leases.into_iter().filter(|id| *id != 0) {
            self.check_lease_keys(caller, KeyAccess::Write, id).await?;
        }
        Ok(())
    }

    async fn lease_keys(&self, id: i64) -> Result<CollectedResponse<Vec<Vec<u8>>>, Status> {
        self.gather(move |snapshot, allowance| snapshot.lease_keys(id, allowance)).await
    }
}

#[tonic::async_trait]
impl Lease for StoreService {
    type LeaseKeepAliveStream = Pin<Box<dyn Stream<Item = Result<LeaseKeepAliveResponse, Status>> + Send>>;

    async fn lease_grant(&self, request: Request<LeaseGrantRequest>) -> GrpcResult<LeaseGrantResponse> {
        self.caller(&request)?;
        let LeaseGrantRequest { ttl, id } = request.into_inner();
        if ttl > MAX_TTL_SECONDS {
            return Err(RequestRejection::LEASE_TTL_TOO_LARGE.into());
        }
        let ttl = ttl.max(MIN_TTL_SECONDS);
        let chosen = id;
        loop {
            let id = if chosen == 0 { rand::random_range(1..=i64::MAX) } else { chosen };
            match self.writer.write(WriteRequest::Grant { id, ttl }).await {
                Ok(WriteResponse::Done { revision }) => {
                    let header = self.header(revision);
                    return Ok(Response::new(LeaseGrantResponse { header, id, ttl, error: String::new() }));
                }
                Err(RequestRejection::LEASE_EXISTS) if chosen == 0 => {}
                Err(refusal) => return Err(refusal.into()),
                Ok(other) => return Err(unexpected(other)),
            }
        }
    }

    async fn lease_revoke(&self, request: Request<LeaseRevokeRequest>) -> GrpcResult<LeaseRevokeResponse> {
        let caller = self.caller(&request)?;
        let id = request.into_inner().id;
        self.check_lease_keys(&caller, KeyAccess::Write, id).await?;
        match self.writer.write(WriteRequest::Revoke { id }).await? {
            WriteResponse::Done { revision } => {
                Ok(Response::new(LeaseRevokeResponse { header: self.header(revision) }))
            }
            other => Err(unexpected(other)),
        }
    }

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> GrpcResult<Self::LeaseKeepAliveStream> {
        self.caller(&request)?;
        let service = self.clone();
        let mut stop = self.stop.clone();
        let answers = request.into_inner().map(move |request| {
            let id = request?.id;
            // A missing lease is answered with a time to live of zero.
            let ttl = service.lessor.renew(id, Instant::now()).unwrap_or(0);
            Ok(LeaseKeepAliveResponse { header: service.current_header(), id, ttl })
        });
        let stopped = async move { drop(stop.wait_for(|stop| *stop).await) };
        Ok(Response::new(Box::pin(answers.take_until(Box::pin(stopped)))))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<LeaseTimeToLiveRequest>,
    ) -> GrpcResult<LeaseTimeToLiveResponse> {
        let caller = self.caller(&request)?;
        let LeaseTimeToLiveRequest { id, keys } = request.into_inner();
        if keys {
            self.check_lease_keys(&caller, KeyAccess::Read, id).await?;
        }
        let Some(time) = self.lessor.time_to_live(id, Instant::now()) else {
            let header = self.current_header();
            return Ok(Response::new(LeaseTimeToLiveResponse { header, id, ttl: -1, ..Default::default() }));
        };
        let CollectedResponse { answer: keys, share } = if keys {
            self.lease_keys(id).await?
        } else {
            CollectedResponse { answer: Vec::new(), share: None }
        };
        let answer = LeaseTimeToLiveResponse {
            header: self.current_header(),
            id,
            ttl: time.remaining,
            granted_ttl: time.granted,
            keys: keys.into_iter().map(Bytes::from).collect(),
        };
        Ok(CollectedResponse { answer, share }.into_response())
    }

    async fn lease_leases(&self, request: Request<LeaseLeasesRequest>) -> GrpcResult<LeaseLeasesResponse> {
        self.caller(&request)?;
        let leases = self.lessor.ids().into_iter().map(|id| LeaseStatus { id }).collect();
        Ok(Response::new(LeaseLeasesResponse { header: self.current_header(), leases }))
    }
}
