//! Has the store forget its history, as Kubernetes and Calico do it.
//!
//! All compactors of a store share one record. Whoever writes it, over the version that it knows, has the turn, and compacts up to
//! the revision of its own last turn. So several of them, an API server of Kubernetes among them, compact no more often than the
//! quickest alone would, and never what is younger than its period.

use super::entries::{found, get, op, path};
use super::kv::is_compacted;
use super::{Etcd, opaque};
use crate::{Error, Result, Revision};
use tortie_etcd_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use tortie_etcd_proto::etcdserverpb::request_op::Request;
use tortie_etcd_proto::etcdserverpb::{Compare, PutRequest};
use tortie_model::Key;

#[derive(Debug)]
pub struct Compactor {
    etcd: Etcd,
    /// The version of the record, as it was last seen.
    turn: i64,
    /// The store's revision of then; 0 before anything is known.
    revision: i64,
}

impl Compactor {
    pub(crate) fn new(etcd: Etcd) -> Compactor {
        Compactor { etcd, turn: 0, revision: 0 }
    }

    /// To be called once in a period. Everything before the returned revision is forgotten; `None` if it was somebody else's
    /// turn, or if this compactor has not been there for a period yet.
    pub async fn compact(&mut self) -> Result<Option<Revision>> {
        let record = path(&Key::CompactRevision);
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
            Ok(()) => Ok(Some(opaque(before))),
            // By the store itself, or by a person.
            Err(error) if is_compacted(&error) => Ok(None),
            Err(Error::Datastore(text)) => Err(Error::Datastore(format!("compaction: {text}"))),
            Err(error) => Err(error),
        }
    }
}
