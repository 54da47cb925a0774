//! Several entries changed at once: all conditions in one request, decided by the server.

use super::entries::{absent, exists, found, get, mismatch, op, path, put, unchanged};
use super::{Etcd, number, opaque};
use crate::{Change, Error, Result, Revision};
use tortie_etcd_proto::etcdserverpb::DeleteRangeRequest;
use tortie_etcd_proto::etcdserverpb::request_op::Request;

impl Etcd {
    pub(crate) async fn commit(&self, changes: &[Change]) -> Result<Revision> {
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
            return Ok(opaque(done.revision));
        }
        for (index, change) in changes.iter().enumerate() {
            let stored = found(&done, index).next();
            let current = stored.as_ref().map(|kv| kv.mod_revision);
            match change {
                Change::Create { key, .. } if current.is_some() => return Err(exists(key, stored.as_ref())),
                Change::Update { key, revision, .. }
                | Change::Delete { key, revision }
                | Change::Keep { key, revision }
                    if current != Some(number(revision)) =>
                {
                    return Err(mismatch(key, stored.as_ref()));
                }
                _ => {}
            }
        }
        Err(Error::Datastore("the datastore refused a transaction whose conditions hold".into()))
    }
}
