//! Atomic changes of several entries: one etcd transaction with all conditions.

use super::entries::{absent, exists, found, get, mismatch, op, path, put, read, unchanged};
use super::{EtcdBackend, convert_revision, number};
use crate::backend::Transactions;
use crate::operation::{OperationRefusal, WrittenRevisions};
use crate::{EntryChange, OperationOutcome, Revision, StoreError, StoreResult};
use async_trait::async_trait;
use tortie_etcd_proto::etcdserverpb::DeleteRangeRequest;
use tortie_etcd_proto::etcdserverpb::request_op::Request;
use tortie_etcd_proto::mvccpb::KeyValue;

enum TransactionAttempt<'a> {
    Done(Revision),
    /// The first change whose condition failed, and the stored entry.
    Refused {
        change: &'a EntryChange,
        stored: Option<KeyValue>,
    },
}

#[async_trait]
impl Transactions for EtcdBackend {
    async fn commit(&self, changes: &[EntryChange]) -> StoreResult<Revision> {
        match self.attempt(changes).await? {
            TransactionAttempt::Done(revision) => Ok(revision),
            TransactionAttempt::Refused { change: EntryChange::Create { key, .. }, stored } => {
                Err(exists(key, stored.as_ref()))
            }
            TransactionAttempt::Refused { change, stored } => Err(mismatch(change.key(), stored.as_ref())),
        }
    }

    async fn carry_out(&self, changes: &[EntryChange]) -> StoreResult<OperationOutcome> {
        Ok(match self.attempt(changes).await? {
            TransactionAttempt::Done(revision) => {
                OperationOutcome::Done(WrittenRevisions::Together(revision))
            }
            TransactionAttempt::Refused { change, stored } => {
                let key = change.key().clone();
                let current = stored.and_then(|kv| read(key.clone(), &kv.value, kv.mod_revision).ok());
                OperationOutcome::Refused(OperationRefusal { key, current: current.map(Box::new) })
            }
        })
    }
}

impl EtcdBackend {
    async fn attempt<'a>(&self, changes: &'a [EntryChange]) -> StoreResult<TransactionAttempt<'a>> {
        let mut compare = Vec::new();
        let mut success = Vec::new();
        let mut failure = Vec::new();
        for change in changes {
            let path = path(change.key());
            failure.push(get(&path));
            match change {
                EntryChange::Create { value, .. } => {
                    compare.push(absent(&path));
                    success.push(put(&path, value, 0));
                }
                EntryChange::Update { value, revision, .. } => {
                    compare.push(unchanged(&path, revision));
                    success.push(put(&path, value, 0));
                }
                EntryChange::Delete { revision, .. } => {
                    compare.push(unchanged(&path, revision));
                    success.push(op(Request::RequestDeleteRange(DeleteRangeRequest {
                        key: path,
                        ..Default::default()
                    })));
                }
                EntryChange::Keep { revision, .. } => compare.push(unchanged(&path, revision)),
            }
        }
        let done = self.cluster.transact(compare, success, failure).await?;
        if done.succeeded {
            return Ok(TransactionAttempt::Done(convert_revision(done.revision)));
        }
        for (index, change) in changes.iter().enumerate() {
            let stored = found(&done, index).next();
            let current = stored.as_ref().map(|kv| kv.mod_revision);
            let as_expected = match change {
                EntryChange::Create { .. } => current.is_none(),
                EntryChange::Update { revision, .. }
                | EntryChange::Delete { revision, .. }
                | EntryChange::Keep { revision, .. } => current == Some(number(revision)),
            };
            if !as_expected {
                return Ok(TransactionAttempt::Refused { change, stored });
            }
        }
        Err(StoreError::Datastore("the datastore refused a transaction whose conditions hold".into()))
    }
}
