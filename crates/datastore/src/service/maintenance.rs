//! The maintenance service: status, alarms, defragmentation, hashes and snapshots. Also the cluster service, which
//! lists the single member.

use super::{GrpcResult, StoreService, unexpected};
use crate::core::{WriteRequest, WriteResponse};
use crate::directory;
use crate::disk_space;
use crate::limits::{MAX_READ_WORK, WorkBudget};
use crate::rejection::RequestRejection;
use crate::snapshot::StoreSnapshot;
use crate::storage_fault::{RequestError, StorageFault};
use crate::watch::RAFT_TERM;
use bytes::Bytes;
use futures::Stream;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::pin::Pin;
use tonic::{Request, Response, Status};
use tortie_etcd_proto::etcdserverpb::alarm_request::AlarmAction;
use tortie_etcd_proto::etcdserverpb::cluster_server::Cluster;
use tortie_etcd_proto::etcdserverpb::maintenance_server::Maintenance;
use tortie_etcd_proto::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmResponse, AlarmType, DefragmentRequest, DefragmentResponse,
    HashKvRequest, HashKvResponse, HashRequest, HashResponse, Member, MemberListRequest, MemberListResponse,
    SnapshotRequest, SnapshotResponse, StatusRequest, StatusResponse,
};

/// The etcd version whose behaviour is implemented; clients evaluate it.
const ETCD_VERSION: &str = "3.5.21";
const SNAPSHOT_PIECE_BYTES: u64 = 64 * 1024;

#[tonic::async_trait]
impl Maintenance for StoreService {
    type SnapshotStream = Pin<Box<dyn Stream<Item = Result<SnapshotResponse, Status>> + Send>>;

    async fn alarm(&self, request: Request<AlarmRequest>) -> GrpcResult<AlarmResponse> {
        let caller = self.caller(&request)?;
        let request = request.into_inner();
        if request.action() != AlarmAction::Get {
            caller.check_root()?;
        }
        let (revision, raised) = match (request.action(), request.alarm()) {
            (AlarmAction::Get, kind) => {
                let state = self.latest.get().state;
                (state.revision, state.no_space && kind != AlarmType::Corrupt)
            }
            (action, AlarmType::Nospace) => {
                let no_space = action == AlarmAction::Activate;
                match self.writer.write(WriteRequest::Alarm { no_space }).await? {
                    WriteResponse::Alarm { revision, changed } => (revision, changed),
                    other => return Err(unexpected(other)),
                }
            }
            _ => (self.latest.get().state.revision, false),
        };
        let alarm = AlarmMember { member_id: self.identity.member, alarm: AlarmType::Nospace.into() };
        let alarms = if raised { vec![alarm] } else { Vec::new() };
        Ok(Response::new(AlarmResponse { header: self.header(revision), alarms }))
    }

    async fn status(&self, _request: Request<StatusRequest>) -> GrpcResult<StatusResponse> {
        let size = self.writer.size().await?;
        let state = self.latest.get().state;
        let index = state.revision.max(0) as u64;
        let alarm = format!("memberID:{} alarm:NOSPACE ", self.identity.member);
        Ok(Response::new(StatusResponse {
            header: self.header(state.revision),
            version: ETCD_VERSION.to_owned(),
            db_size: i64::try_from(size).unwrap_or(i64::MAX),
            leader: self.identity.member,
            raft_index: index,
            raft_term: RAFT_TERM,
            raft_applied_index: index,
            errors: if state.no_space { vec![alarm] } else { Vec::new() },
            db_size_in_use: state.in_use,
            is_learner: false,
        }))
    }

    async fn defragment(&self, request: Request<DefragmentRequest>) -> GrpcResult<DefragmentResponse> {
        self.caller(&request)?.check_root()?;
        self.writer.defragment().await?;
        Ok(Response::new(DefragmentResponse { header: self.current_header() }))
    }

    async fn hash(&self, request: Request<HashRequest>) -> GrpcResult<HashResponse> {
        self.caller(&request)?.check_root()?;
        let hash = self.read(|snapshot| Ok(hash(snapshot, snapshot.state.revision)?)).await?;
        Ok(Response::new(HashResponse { header: self.current_header(), hash }))
    }

    async fn hash_kv(&self, request: Request<HashKvRequest>) -> GrpcResult<HashKvResponse> {
        self.caller(&request)?.check_root()?;
        let wanted = request.into_inner().revision;
        let (revision, compact_revision, hash) = self
            .read(move |snapshot| {
                let at = snapshot.view(&WorkBudget::new(MAX_READ_WORK)).resolve(wanted)?;
                Ok((snapshot.state.revision, snapshot.state.compacted, hash(snapshot, at)?))
            })
            .await?;
        Ok(Response::new(HashKvResponse { header: self.header(revision), hash, compact_revision }))
    }

    async fn snapshot(&self, request: Request<SnapshotRequest>) -> GrpcResult<Self::SnapshotStream> {
        self.caller(&request)?.check_root()?;
        let dir = self.dir.clone().unwrap_or_else(std::env::temp_dir);
        let header = self.current_header();
        let latest = self.latest.clone();
        let copied = tokio::task::spawn_blocking(move || copy(&latest.get(), &dir)).await;
        let copied = copied.map_err(|_| Status::from(RequestRejection::STORAGE_FAILED))?;
        let copy = copied.map_err(|fault| {
            tracing::warn!("no snapshot was made: {fault}");
            fault.into_status("no snapshot was made")
        })?;
        let total = copy.len + directory::CHECKSUM_BYTES;
        let pieces = futures::stream::try_unfold(copy, move |copy| async move {
            let read = tokio::task::spawn_blocking(move || copy.next()).await;
            let Some((blob, copy)) =
                read.map_err(|_| RequestRejection::STORAGE_FAILED)?.map_err(RequestError::from)?
            else {
                return Ok(None);
            };
            let remaining_bytes = total - copy.sent;
            Ok(Some((SnapshotResponse { header, remaining_bytes, blob }, copy)))
        });
        Ok(Response::new(Box::pin(pieces)))
    }
}

/// Copies the database to an unlinked file, so that a crash does not leave it behind.
fn copy(snapshot: &StoreSnapshot, dir: &Path) -> Result<SnapshotCopy, StorageFault> {
    // Concurrent writes must not run out of disk space.
    disk_space::require(dir, snapshot.copy_bytes() + disk_space::FREE_MARGIN_BYTES)?;
    let (path, file) = directory::temporary(dir)?;
    let copied = snapshot.copy_to(file);
    std::fs::remove_file(&path)?;
    let file = copied?.file().try_clone()?;
    let len = file.metadata()?.len();
    let checksum = directory::checksum(&file, len)?;
    Ok(SnapshotCopy { file, len, checksum, sent: 0 })
}

/// A copy of the database that is being sent to a client, followed by its checksum.
struct SnapshotCopy {
    file: File,
    len: u64,
    checksum: [u8; directory::CHECKSUM_BYTES as usize],
    sent: u64,
}

impl SnapshotCopy {
    fn next(mut self) -> Result<Option<(Bytes, SnapshotCopy)>, StorageFault> {
        if self.sent > self.len {
            return Ok(None);
        }
        if self.sent == self.len {
            self.sent += directory::CHECKSUM_BYTES;
            return Ok(Some((Bytes::copy_from_slice(&self.checksum), self)));
        }
        let mut piece = vec![0; SNAPSHOT_PIECE_BYTES.min(self.len - self.sent) as usize];
        self.file.read_exact_at(&mut piece, self.sent)?;
        self.sent += piece.len() as u64;
        Ok(Some((Bytes::from(piece), self)))
    }
}

/// Returns a hash that is equal for stores with the same history up to a revision.
fn hash(snapshot: &StoreSnapshot, revision: i64) -> Result<u32, StorageFault> {
    let mut digest = Sha256::new();
    for row in snapshot.history.range(..=(revision.max(0) as u64, u32::MAX))? {
        let (at, entry) = row?;
        digest.update(at.value().0.to_le_bytes());
        digest.update(at.value().1.to_le_bytes());
        digest.update(entry.value());
    }
    let [a, b, c, d, ..]: [u8; 32] = digest.finalize().into();
    Ok(u32::from_le_bytes([a, b, c, d]))
}

#[tonic::async_trait]
impl Cluster for StoreService {
    async fn member_list(&self, _request: Request<MemberListRequest>) -> GrpcResult<MemberListResponse> {
        let member = Member {
            id: self.identity.member,
            name: "tortie".to_owned(),
            client_ur_ls: self.client_urls.clone(),
            ..Default::default()
        };
        Ok(Response::new(MemberListResponse { header: self.current_header(), members: vec![member] }))
    }
}
