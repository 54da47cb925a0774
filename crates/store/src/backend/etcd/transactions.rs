//! Atomic changes of several entries: one etcd transaction with all conditions.

use super::entries::{absent, exists, found, get, mismatch, op, path, put, read, unchanged};
use super::{Etcd, number, opaque};
use crate::operation::{Refusal, Written};
use crate::{Change, Error, Outcome, Result, Revision};
use tortie_etcd_proto::etcdserverpb::DeleteRangeRequest;
use tortie_etcd_proto::etcdserverpb::request_op::Request;
use tortie_etcd_proto::mvccpb::KeyValue;

enum Attempt<'a> {
    Done(Revision),
    /// The first change whose condition failed, and the stored entry.
    Refused {
        change: &'a Change,
        stored: Option<KeyValue>,
    },
}

impl Etcd {
    pub(crate) async fn commit(&self, changes: &[Change]) -> Result<Revision> {
        match self.attempt(changes).await? {
            Attempt::Done(revision) => Ok(revision),
            Attempt::Refused { change: Change::Create { key, .. }, stored } => {
                Err(exists(key, stored.as_ref()))
            }
            Attempt::Refused { change, stored } => Err(mismatch(change.key(), stored.as_ref())),
        }
    }

    pub(crate) async fn carry_out(&self, changes: &[Change]) -> Result<Outcome> {
        Ok(match self.attempt(changes).await? {
            Attempt::Done(revision) => Outcome::Done(Written::Together(revision)),
            Attempt::Refused { change, stored } => {
                let key = change.key().clone();
                let current = stored.and_then(|kv| read(key.clone(), &kv.value, kv.mod_revision).ok());
                Outcome::Refused(Refusal { key, current: current.map(Box::new) })
            }
        })
    }

    async fn attempt<'a>(&self, changes: &'a [Change]) -> Result<Attempt<'a>> {
        let mut compare = Vec::new();
        let mut success = Vec::new();
        let mut failure = Vec::new();
        for change in changes {
            let path = path(change.key());
            failure.push(get(&path));
            match change {
                Change::Create { value, .. } => {
                    compare.push(absent(&path));
                    success.push(put(&path, value, 0));
                }
                Change::Update { value, revision, .. } => {
                    compare.push(unchanged(&path, revision));
                    success.push(put(&path, value, 0));
                }
                Change::Delete { revision, .. } => {
                    compare.push(unchanged(&path, revision));
                    success.push(op(Request::RequestDeleteRange(DeleteRangeRequest {
                        key: path,
                        ..Default::default()
                    })));
                }
                Change::Keep { revision, .. } => compare.push(unchanged(&path, revision)),
            }
        }
        let done = self.cluster.transact(compare, success, failure).await?;
        if done.succeeded {
            return Ok(Attempt::Done(opaque(done.revision)));
        }
        for (index, change) in changes.iter().enumerate() {
            let stored = found(&done, index).next();
            let current = stored.as_ref().map(|kv| kv.mod_revision);
            let as_expected = match change {
                Change::Create { .. } => current.is_none(),
                Change::Update { revision, .. }
                | Change::Delete { revision, .. }
                | Change::Keep { revision, .. } => current == Some(number(revision)),
            };
            if !as_expected {
                return Ok(Attempt::Refused { change, stored });
            }
        }
        Err(Error::Datastore("the datastore refused a transaction whose conditions hold".into()))
    }
}
