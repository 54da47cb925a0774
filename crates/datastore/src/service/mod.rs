//! The gRPC services: validate a request, pass it to the store and complete the header of the response.

mod auth;
mod encoded_body;
mod incomplete_requests;
mod kv;
mod lease;
mod maintenance;
mod paced_body;
mod response;
mod watch;

use super::auth::AuthTokens;
use super::core::WriteResponse;
use super::directory::StoreIdentity;
use super::lessor::Lessor;
use super::limits::{
    BudgetShare, MAX_RESPONSE_BYTES, ResponseAllowance, ResponseBudget, SMALL_RESPONSE_BYTES,
};
use super::rejection::RequestRejection;
use super::snapshot::{LatestSnapshot, StoreSnapshot};
use super::storage_fault::RequestError;
use super::watch::{RAFT_TERM, WatchHub};
use super::writer::StoreWriter;
pub use incomplete_requests::RequestIntake;
use response::PostProcessed;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::{Semaphore, watch as signal};
use tonic::service::Routes;
use tonic::{Response, Status};
use tortie_etcd_proto::etcdserverpb::ResponseHeader;
use tortie_etcd_proto::etcdserverpb::auth_server::AuthServer;
use tortie_etcd_proto::etcdserverpb::cluster_server::ClusterServer;
use tortie_etcd_proto::etcdserverpb::kv_server::KvServer;
use tortie_etcd_proto::etcdserverpb::lease_server::LeaseServer;
use tortie_etcd_proto::etcdserverpb::maintenance_server::MaintenanceServer;
use watch::WatchServer;

/// etcd accepts messages this much larger than the largest request, so that slightly larger ones are rejected with
/// its own error.
const MAX_MESSAGE_BYTES: usize = super::validate::MAX_REQUEST_BYTES + 512 * 1024;

/// Result of a gRPC method.
type GrpcResult<T> = Result<Response<T>, Status>;

/// The state that the services share.
#[derive(Clone)]
pub struct StoreService {
    pub writer: StoreWriter,
    pub latest: Arc<LatestSnapshot>,
    pub lessor: Arc<Lessor>,
    pub hub: Arc<WatchHub>,
    pub answers: ResponseBudget,
    pub tokens: Arc<AuthTokens>,
    /// Limits concurrent validations of large transactions.
    pub checking: Arc<Semaphore>,
    /// Limits concurrent password hashes.
    pub hashing: Arc<Semaphore>,
    pub identity: StoreIdentity,
    pub dir: Option<PathBuf>,
    pub client_urls: Vec<String>,
    /// Becomes true when the server stops; streams end then.
    pub stop: signal::Receiver<bool>,
}

impl StoreService {
    pub fn routes(self) -> Routes {
        const LIMIT: usize = MAX_MESSAGE_BYTES;
        let service = Arc::new(self);
        let kv = KvServer::from_arc(service.clone()).max_decoding_message_size(LIMIT);
        let lease = LeaseServer::from_arc(service.clone()).max_decoding_message_size(LIMIT);
        let cluster = ClusterServer::from_arc(service.clone()).max_decoding_message_size(LIMIT);
        let maintenance = MaintenanceServer::from_arc(service.clone()).max_decoding_message_size(LIMIT);
        let auth = AuthServer::from_arc(service.clone()).max_decoding_message_size(LIMIT);
        Routes::new(PostProcessed(kv))
            .add_service(PostProcessed(lease))
            .add_service(PostProcessed(cluster))
            .add_service(PostProcessed(maintenance))
            .add_service(PostProcessed(auth))
            .add_service(WatchServer::new(service))
    }

    fn header(&self, revision: i64) -> Option<ResponseHeader> {
        Some(ResponseHeader {
            cluster_id: self.identity.cluster,
            member_id: self.identity.member,
            revision,
            raft_term: RAFT_TERM,
        })
    }

    /// Adds the identity of the server to a header that contains only the revision.
    fn complete(&self, header: &mut Option<ResponseHeader>) {
        let revision = header.as_ref().map_or(0, |header| header.revision);
        *header = self.header(revision);
    }

    fn current_header(&self) -> Option<ResponseHeader> {
        self.header(self.latest.get().state.revision)
    }

    /// Reads from the newest snapshot on a blocking thread, so that slow reads do not block the threads that serve
    /// connections.
    async fn read<T, F>(&self, read: F) -> Result<T, Status>
    where
        T: Send + 'static,
        F: FnOnce(&StoreSnapshot) -> Result<T, RequestError> + Send + 'static,
    {
        let latest = self.latest.clone();
        match tokio::task::spawn_blocking(move || read(&latest.get())).await {
            Ok(result) => result.map_err(Status::from),
            Err(_) => Err(RequestRejection::STORAGE_FAILED.into()),
        }
    }
}

/// The result of a read and the share of memory that it holds until it has been sent.
struct CollectedResponse<T> {
    answer: T,
    share: Option<BudgetShare>,
}

impl StoreService {
    /// Collects a response that may be large, within the memory budget of all responses.
    async fn gather<T, F>(&self, read: F) -> Result<CollectedResponse<T>, Status>
    where
        T: Send + 'static,
        F: Fn(&StoreSnapshot, &mut ResponseAllowance) -> Result<T, RequestError> + Send + Sync + 'static,
    {
        let read = Arc::new(read);
        // Every attempt uses the same snapshot, so that the size counted once fits the next time.
        let snapshot = self.latest.get();
        let (mut permit, mut limit) = self.answers.at_once();
        loop {
            let read = read.clone();
            let snapshot = snapshot.clone();
            // The permit moves with the read, which runs to its end even if the client has disconnected.
            let attempt = tokio::task::spawn_blocking(move || {
                let mut allowance = ResponseAllowance::new(limit.max(SMALL_RESPONSE_BYTES));
                (read(&snapshot, &mut allowance), allowance.used(), permit)
            });
            let (answer, used, held) = attempt.await.map_err(|_| RequestRejection::STORAGE_FAILED)?;
            match answer {
                Err(RequestError::Rejected(RequestRejection::ANSWER_TOO_LARGE))
                    if used <= MAX_RESPONSE_BYTES && used > limit =>
                {
                    drop(held);
                    permit = Some(self.answers.wait_for(used).await?);
                    limit = used;
                }
                answer => {
                    let share = ResponseBudget::shrink(held, used);
                    return Ok(CollectedResponse { answer: answer?, share });
                }
            }
        }
    }
}

impl<T> CollectedResponse<T> {
    fn into_response(self) -> Response<T> {
        let mut response = Response::new(self.answer);
        if let Some(share) = self.share {
            response.extensions_mut().insert(share);
        }
        response
    }
}

impl From<RequestError> for Status {
    fn from(error: RequestError) -> Status {
        match error {
            RequestError::Rejected(rejection) => rejection.into(),
            RequestError::Storage(fault) => {
                tracing::error!("cannot read the store: {fault}");
                RequestRejection::STORAGE_FAILED.into()
            }
        }
    }
}

/// The writer answers each kind of request with the matching kind of response; any other is a programming error.
fn unexpected(answer: WriteResponse) -> Status {
    tracing::error!("unexpected answer: {answer:?}");
    RequestRejection::STORAGE_FAILED.into()
}
