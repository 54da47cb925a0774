//! Compaction of the store's history, with the protocol of kube-apiserver and Calico.
//!
//! All compactors of a store share one record. The one that overwrites the version it has last seen gets the turn, and
//! compacts up to the revision of its previous turn. So several compactors, including kube-apiserver, compact no more
//! often than the one with the shortest period would alone, and never compact revisions younger than its period.

use super::entries::{found, get, op, path};
use super::{EtcdBackend, convert_revision};
use crate::backend::HistoryCompactor;
use crate::{Revision, StoreError, StoreResult};
use async_trait::async_trait;
use tortie_etcd_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use tortie_etcd_proto::etcdserverpb::request_op::Request;
use tortie_etcd_proto::etcdserverpb::{Compare, PutRequest};
use tortie_model::StoreKey;

#[derive(Debug)]
pub struct EtcdCompactor {
    etcd: EtcdBackend,
    /// Version of the shared record when last seen.
    turn: i64,
    /// Revision of the store at that time; 0 before the first call.
    revision: i64,
}

impl EtcdCompactor {
    pub fn new(etcd: EtcdBackend) -> EtcdCompactor {
        EtcdCompactor { etcd, turn: 0, revision: 0 }
    }
}

#[async_trait]
impl HistoryCompactor for EtcdCompactor {
    async fn compact(&mut self) -> StoreResult<Option<Revision>> {
        let record = path(&StoreKey::CompactRevision);
        let unchanged = Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Version.into(),
            key: record.clone(),
            target_union: Some(TargetUnion::Version(self.turn)),
            ..Default::default()
        };
        let write = op(Request::RequestPut(PutRequest {
            key: record.clone(),
            value: self.revision.to_string().into(),
            ..Default::default()
        }));
        let done = self.etcd.cluster.transact(vec![unchanged], vec![write], vec![get(&record)]).await?;
        let before = std::mem::replace(&mut self.revision, done.revision);
        if !done.succeeded {
            self.turn = found(&done, 0).next().map(|kv| kv.version).unwrap_or_default();
            return Ok(None);
        }
        self.turn += 1;
        if before == 0 {
            return Ok(None);
        }
        match self.etcd.cluster.compact(before).await {
            Ok(()) => Ok(Some(convert_revision(before))),
            // Already compacted, by etcd's auto-compaction or manually. etcd rejects a revision of the future with the
            // same code; the revision of the transaction above shows that this one is not.
            Err(StoreError::Expired(_)) if before <= done.revision => Ok(None),
            Err(StoreError::Datastore(text) | StoreError::Expired(text)) => {
                Err(StoreError::Datastore(format!("compaction: {text}")))
            }
            Err(error) => Err(error),
        }
    }
}
