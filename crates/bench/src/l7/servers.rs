//! Servers of a measurement: one that allows every request, and `tortie l7 serve` with the policy of a workload.

use super::policy::PolicyShape;
use crate::namespace::{BenchResult, check};
use crate::process::{BenchProcess, tortie};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};
use tortie_l7::proto::v3::authorization_server::{Authorization, AuthorizationServer};
use tortie_l7::proto::v3::{CheckRequest, CheckResponse, RpcStatus};
use tortie_policysync::proto::policy_sync_server::{PolicySync, PolicySyncServer};
use tortie_policysync::proto::{DataplaneStats, ReportResult, SyncRequest, ToDataplane};

const SYNC_TIMEOUT: Duration = Duration::from_secs(60);
const SYNC_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Allows every request, with as little work as tonic permits.
pub struct AllowAllServer {
    pub socket: PathBuf,
    _runtime: Runtime,
}

struct AllowAll;

#[tonic::async_trait]
impl Authorization for AllowAll {
    async fn check(&self, _: Request<CheckRequest>) -> Result<Response<CheckResponse>, Status> {
        Ok(Response::new(CheckResponse { status: Some(RpcStatus::default()), ..CheckResponse::default() }))
    }
}

impl AllowAllServer {
    pub fn start(dir: &Path) -> BenchResult<AllowAllServer> {
        // As many threads as `tortie l7 serve` has.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let socket = dir.join("allow-all.sock");
        let listener = {
            let _entered = runtime.enter();
            UnixListener::bind(&socket)?
        };
        let server = tonic::transport::Server::builder().add_service(AuthorizationServer::new(AllowAll));
        runtime.spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
        Ok(AllowAllServer { socket, _runtime: runtime })
    }
}

/// `tortie l7 serve` in sync with a policy.
pub struct PolicyServer {
    pub socket: PathBuf,
    pub process: BenchProcess,
    _runtime: Runtime,
    _dir: TempDir,
}

/// Sends the same messages to each client, then nothing more.
struct FixedPolicySync(PolicyShape);

#[tonic::async_trait]
impl PolicySync for FixedPolicySync {
    type SyncStream = std::pin::Pin<Box<dyn tokio_stream::Stream<Item = Result<ToDataplane, Status>> + Send>>;

    async fn sync(&self, _: Request<SyncRequest>) -> Result<Response<Self::SyncStream>, Status> {
        let messages = (1..)
            .zip(self.0.messages())
            .map(|(sequence_number, payload)| Ok(ToDataplane { sequence_number, payload: Some(payload) }));
        Ok(Response::new(Box::pin(tokio_stream::iter(messages).chain(tokio_stream::pending()))))
    }

    async fn report(&self, _: Request<DataplaneStats>) -> Result<Response<ReportResult>, Status> {
        Ok(Response::new(ReportResult { successful: true }))
    }
}

impl PolicyServer {
    pub fn start(shape: PolicyShape) -> BenchResult<PolicyServer> {
        let dir = tempfile::Builder::new().prefix("tortie-bench-").tempdir()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let policy_socket = dir.path().join("policy.sock");
        let listener = {
            let _entered = runtime.enter();
            UnixListener::bind(&policy_socket)?
        };
        let server =
            tonic::transport::Server::builder().add_service(PolicySyncServer::new(FixedPolicySync(shape)));
        runtime.spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));

        let socket = dir.path().join("authz.sock");
        let mut command = BenchProcess::command(tortie()?);
        command.args(["l7", "serve", "--listen"]).arg(&socket).arg("--dial").arg(policy_socket);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = BenchProcess(command.spawn()?);
        let deadline = Instant::now() + SYNC_TIMEOUT;
        while !is_ready(&socket)? {
            check()?;
            if Instant::now() > deadline {
                return Err("tortie l7 serve is not in sync".into());
            }
            std::thread::sleep(SYNC_POLL_INTERVAL);
        }
        Ok(PolicyServer { socket, process, _runtime: runtime, _dir: dir })
    }
}

fn is_ready(socket: &Path) -> BenchResult<bool> {
    let mut command = BenchProcess::command(tortie()?);
    command.args(["l7", "health", "readiness", "--dial-path"]).arg(socket);
    Ok(command.stdin(Stdio::null()).output()?.status.success())
}
