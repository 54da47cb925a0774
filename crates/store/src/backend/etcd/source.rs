//! Implementation of `WatchSource` for etcd: lists, and one watch stream at a time.

use super::entries::{key_in, read};
use super::position::{InterpretedResponse, WatchPosition};
use super::watch::{WatchStream, open_watch};
use super::{EtcdCluster, convert_revision, keys, number};
use crate::watch::follower::WatchItem;
use crate::watch::source::{RangeSnapshot, WatchReport, WatchSource};
use crate::{Revision, StoreEntry, StoreError, StoreResult};
use bytes::Bytes;
use std::sync::Arc;
use tortie_model::{KeyRange, StoreKey, StoreValue};

pub(crate) struct EtcdSource {
    cluster: Arc<EtcdCluster>,
    range: KeyRange,
    position: WatchPosition,
    stream: Option<WatchStream>,
    decodes: bool,
}

impl EtcdSource {
    /// Without `decodes`, the stored bytes of each value are delivered as [`StoreValue::Raw`].
    pub fn new(cluster: Arc<EtcdCluster>, range: KeyRange, decodes: bool) -> EtcdSource {
        EtcdSource { cluster, range, position: WatchPosition::new(), stream: None, decodes }
    }
}

impl WatchSource for EtcdSource {
    type Value = Bytes;

    async fn list(&mut self) -> StoreResult<RangeSnapshot<Bytes>> {
        let listed = self
            .cluster
            .list(&keys::prefix(&self.range), None, false, |kv| {
                let key = key_in(&self.range, &kv.key)?;
                Some(WatchItem { key, revision: convert_revision(kv.mod_revision), value: kv.value })
            })
            .await?;
        self.position.listed(listed.cluster_id);
        Ok(RangeSnapshot { items: listed.items, revision: convert_revision(listed.revision) })
    }

    async fn keys_at(&mut self, revision: &Revision) -> StoreResult<Option<Vec<(StoreKey, Revision)>>> {
        let listed = self
            .cluster
            .list(&keys::prefix(&self.range), Some(number(revision)), true, |kv| {
                Some((key_in(&self.range, &kv.key)?, convert_revision(kv.mod_revision)))
            })
            .await;
        match listed {
            Ok(listed) => {
                self.position.listed(listed.cluster_id);
                Ok(Some(listed.items))
            }
            // Compacted, or in the future.
            Err(StoreError::Expired(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn open(&mut self, after: &Revision) -> StoreResult<()> {
        let from = self.position.open(after);
        self.stream = None;
        self.stream = Some(open_watch(&self.cluster, &keys::prefix(&self.range), from).await?);
        Ok(())
    }

    async fn next(&mut self) -> StoreResult<WatchReport<Bytes>> {
        let Some(stream) = &mut self.stream else {
            return Err(StoreError::Datastore("the watch is not open".into()));
        };
        match self.position.heard(&self.range, stream.next().await?) {
            InterpretedResponse::Heard(heard) => Ok(heard),
            InterpretedResponse::Closed(reason) => {
                stream.refused().await;
                Err(StoreError::Datastore(format!("the datastore closed the watch: {reason}")))
            }
        }
    }

    fn read(&self, item: WatchItem<Bytes>) -> StoreResult<StoreEntry> {
        if self.decodes {
            return read(item.key, &item.value, number(&item.revision));
        }
        Ok(StoreEntry { key: item.key, value: StoreValue::Raw(item.value.to_vec()), revision: item.revision })
    }
}
