//! Implementation of `Source` for etcd: lists, and one watch stream at a time.

use super::entries::{key_in, read};
use super::position::{Position, Response};
use super::watch::{WatchStream, open_watch};
use super::{Cluster, keys, number, opaque};
use crate::watch::follower::Item;
use crate::watch::source::{Heard, Snapshot, Source};
use crate::{Entry, Error, Result, Revision};
use bytes::Bytes;
use std::sync::Arc;
use tortie_model::{Key, KeyRange};

pub(crate) struct EtcdSource {
    cluster: Arc<Cluster>,
    range: KeyRange,
    position: Position,
    stream: Option<WatchStream>,
}

impl EtcdSource {
    pub fn new(cluster: Arc<Cluster>, range: KeyRange) -> EtcdSource {
        EtcdSource { cluster, range, position: Position::new(), stream: None }
    }
}

impl Source for EtcdSource {
    type Value = Bytes;

    async fn list(&mut self) -> Result<Snapshot<Bytes>> {
        let range = &self.range;
        let item = |kv: tortie_etcd_proto::mvccpb::KeyValue| {
            let key = key_in(range, &kv.key)?;
            Some(Item { key, revision: opaque(kv.mod_revision), value: kv.value })
        };
        let listed = self.cluster.list(&keys::prefix(range), None, false, item).await?;
        self.position.listed(listed.cluster_id);
        Ok(Snapshot { items: listed.items, revision: opaque(listed.revision) })
    }

    async fn keys_at(&mut self, revision: &Revision) -> Result<Option<Vec<(Key, Revision)>>> {
        let range = &self.range;
        let key = |kv: tortie_etcd_proto::mvccpb::KeyValue| {
            Some((key_in(range, &kv.key)?, opaque(kv.mod_revision)))
        };
        match self.cluster.list(&keys::prefix(range), Some(number(revision)), true, key).await {
            Ok(listed) => {
                self.position.listed(listed.cluster_id);
                Ok(Some(listed.items))
            }
            // Compacted, or in the future.
            Err(Error::Datastore(text)) if text.contains("required revision") => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn open(&mut self, after: &Revision) -> Result<()> {
        let from = self.position.open(after);
        self.stream = None;
        self.stream = Some(open_watch(&self.cluster, &keys::prefix(&self.range), from).await?);
        Ok(())
    }

    async fn next(&mut self) -> Result<Heard<Bytes>> {
        let Some(stream) = &mut self.stream else {
            return Err(Error::Datastore("the watch is not open".into()));
        };
        match self.position.heard(&self.range, stream.next().await?) {
            Response::Heard(heard) => Ok(heard),
            Response::Closed(reason) => {
                stream.refused().await;
                Err(Error::Datastore(format!("the datastore closed the watch: {reason}")))
            }
        }
    }

    fn read(&self, item: Item<Bytes>) -> Result<Entry> {
        read(item.key, &item.value, number(&item.revision))
    }
}
