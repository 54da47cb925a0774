//! Calls of the etcd KV and Lease services: paged ranges, writes, transactions, compaction and leases.

use super::{EtcdCluster, EtcdRetryPolicy};
use crate::{StoreError, StoreResult};
use bytes::Bytes;
use prost::Message;
use std::time::Duration;
use tonic::transport::Channel;
use tortie_etcd_proto::etcdserverpb::kv_client::KvClient;
use tortie_etcd_proto::etcdserverpb::lease_client::LeaseClient;
use tortie_etcd_proto::etcdserverpb::{
    CompactionRequest, Compare, LeaseGrantRequest, PutRequest, RangeRequest, RangeResponse, RequestOp,
    ResponseHeader, ResponseOp, TxnRequest,
};
use tortie_etcd_proto::mvccpb::KeyValue;

/// Limit for decoded messages; a page of the largest values that etcd accepts stays well below it.
const MAX_MESSAGE_BYTES: usize = 1 << 30;
/// Target size of a page; keeps messages small and the server responsive.
const TARGET_PAGE_BYTES: usize = 2 << 20;
const MAX_PAGE_KEYS: i64 = 10_000;
/// Maximum number of attempts to list when the revision of the list is compacted before the last page.
const MAX_LIST_ATTEMPTS: u32 = 5;

/// All entries of a range at one revision.
#[derive(Debug)]
pub(crate) struct ListedKeyValues<T> {
    pub items: Vec<T>,
    pub revision: i64,
    pub cluster_id: u64,
}

/// A page of entries of a range at one revision.
#[derive(Debug)]
pub(crate) struct KeyValues {
    pub kvs: Vec<KeyValue>,
    pub revision: i64,
    pub more: bool,
}

/// Result of a transaction.
#[derive(Debug)]
pub(crate) struct TransactionResult {
    pub succeeded: bool,
    pub revision: i64,
    pub responses: Vec<ResponseOp>,
}

fn kv(channel: Channel) -> KvClient<Channel> {
    KvClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES)
}

fn header(header: Option<ResponseHeader>) -> StoreResult<ResponseHeader> {
    header.ok_or_else(|| {
        StoreError::Datastore(
            "the datastore's answer has no header: check that the endpoint is an etcd v3 client port".into(),
        )
    })
}

/// Returns the first key after all keys with this prefix.
pub(crate) fn prefix_end(prefix: &[u8]) -> Bytes {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end.into();
        }
    }
    // No such key exists: an end of `\0` means all keys from the start on.
    Bytes::from_static(&[0])
}

impl EtcdCluster {
    async fn range(&self, request: RangeRequest) -> StoreResult<RangeResponse> {
        self.call(EtcdRetryPolicy::Always, request, |channel, request| async move {
            kv(channel).range(request).await
        })
        .await
    }

    /// Reads a key, which the members have to agree on, with the timeout of a probe.
    pub async fn probe(&self, key: &str) -> StoreResult<()> {
        let request = RangeRequest {
            key: Bytes::copy_from_slice(key.as_bytes()),
            count_only: true,
            ..Default::default()
        };
        self.call_within(
            self.limits.probe,
            EtcdRetryPolicy::Always,
            request,
            |channel, request| async move { kv(channel).range(request).await },
        )
        .await?;
        Ok(())
    }

    pub async fn get(&self, key: &str) -> StoreResult<Option<KeyValue>> {
        let request = RangeRequest { key: Bytes::copy_from_slice(key.as_bytes()), ..Default::default() };
        let answer = self.range(request).await?;
        header(answer.header)?;
        Ok(answer.kvs.into_iter().next())
    }

    /// Lists all keys with the prefix at one revision: the given one, or the current one. Each entry is passed through
    /// `read`.
    pub async fn list<T>(
        &self,
        prefix: &str,
        revision: Option<i64>,
        keys_only: bool,
        mut read: impl FnMut(KeyValue) -> Option<T>,
    ) -> StoreResult<ListedKeyValues<T>> {
        let mut attempt = 1;
        loop {
            match self.list_once(prefix, revision, keys_only, &mut read).await {
                Err(StoreError::Expired(_)) if revision.is_none() && attempt < MAX_LIST_ATTEMPTS => {
                    attempt += 1;
                }
                // The caller has named no revision that it could replace.
                Err(StoreError::Expired(reason)) if revision.is_none() => {
                    return Err(StoreError::Datastore(format!("listing {prefix}: {reason}")));
                }
                done => return done,
            }
        }
    }

    async fn list_once<T>(
        &self,
        prefix: &str,
        revision: Option<i64>,
        keys_only: bool,
        read: &mut impl FnMut(KeyValue) -> Option<T>,
    ) -> StoreResult<ListedKeyValues<T>> {
        let mut request = RangeRequest {
            key: Bytes::copy_from_slice(prefix.as_bytes()),
            range_end: prefix_end(prefix.as_bytes()),
            limit: self.limits.first_page,
            revision: revision.unwrap_or_default(),
            keys_only,
            ..Default::default()
        };
        let mut items = Vec::new();
        loop {
            let answer = self.range(request.clone()).await?;
            let size = answer.encoded_len();
            let ResponseHeader { revision: current, cluster_id, .. } = header(answer.header)?;
            // Later pages have to be read at the same revision as the first.
            if request.revision == 0 {
                request.revision = current;
            }
            let next = answer.kvs.last().map(|kv| after(&kv.key));
            request.limit = next_page(request.limit, answer.kvs.len(), size);
            items.extend(answer.kvs.into_iter().filter_map(&mut *read));
            match next.filter(|_| answer.more) {
                Some(key) => request.key = key,
                None => return Ok(ListedKeyValues { items, revision: request.revision, cluster_id }),
            }
        }
    }

    /// Returns at most `limit` entries with the prefix from `start` on, at `revision`, or at the current one if it is
    /// 0.
    pub async fn page(
        &self,
        prefix: &str,
        start: Bytes,
        revision: i64,
        limit: i64,
    ) -> StoreResult<KeyValues> {
        let range_end = prefix_end(prefix.as_bytes());
        let request = RangeRequest { key: start, range_end, limit, revision, ..Default::default() };
        let answer = self.range(request).await?;
        let current = header(answer.header)?.revision;
        let revision = if revision == 0 { current } else { revision };
        Ok(KeyValues { kvs: answer.kvs, revision, more: answer.more })
    }

    pub async fn put(&self, request: PutRequest) -> StoreResult<i64> {
        // An unconditional write is idempotent, so it may be repeated.
        let answer = self
            .call(EtcdRetryPolicy::Always, request, |channel, request| async move {
                kv(channel).put(request).await
            })
            .await?;
        Ok(header(answer.header)?.revision)
    }

    pub async fn transact(
        &self,
        compare: Vec<Compare>,
        success: Vec<RequestOp>,
        failure: Vec<RequestOp>,
    ) -> StoreResult<TransactionResult> {
        let request = TxnRequest { compare, success, failure };
        let answer = self
            .call(EtcdRetryPolicy::IfUnsent, request, |channel, request| async move {
                kv(channel).txn(request).await
            })
            .await?;
        Ok(TransactionResult {
            succeeded: answer.succeeded,
            revision: header(answer.header)?.revision,
            responses: answer.responses,
        })
    }

    /// Removes the history before a revision.
    pub async fn compact(&self, revision: i64) -> StoreResult<()> {
        let request = CompactionRequest { revision, physical: false };
        let compacted = self
            .call(EtcdRetryPolicy::Always, request, |channel, request| async move {
                kv(channel).compact(request).await
            })
            .await;
        compacted.map(drop)
    }

    /// Grants a lease, rounded down to whole seconds but at least one, as Calico does.
    pub async fn lease(&self, ttl: Duration) -> StoreResult<i64> {
        let ttl = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX).max(1);
        let request = LeaseGrantRequest { ttl, id: 0 };
        let answer = self
            .call(EtcdRetryPolicy::Always, request, |channel, request| async move {
                LeaseClient::new(channel).lease_grant(request).await
            })
            .await?;
        if answer.error.is_empty() { Ok(answer.id) } else { Err(StoreError::Datastore(answer.error)) }
    }
}

/// Returns the smallest key greater than this one.
pub(crate) fn after(key: &[u8]) -> Bytes {
    let mut next = key.to_vec();
    next.push(0);
    next.into()
}

/// Returns the number of entries for the next page of the target size. It grows by at most a factor of 4 and shrinks at
/// once.
fn next_page(limit: i64, entries: usize, size: usize) -> i64 {
    let average = size.checked_div(entries).unwrap_or(0).max(1);
    let fitting = i64::try_from(TARGET_PAGE_BYTES / average).unwrap_or(MAX_PAGE_KEYS);
    fitting.min(limit.saturating_mul(4)).clamp(1, MAX_PAGE_KEYS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix() {
        assert_eq!(prefix_end(b"/calico/"), Bytes::from_static(b"/calico0"));
        assert_eq!(prefix_end(b"a\xff\xff"), Bytes::from_static(b"b"));
        assert_eq!(prefix_end(b"\xff"), Bytes::from_static(&[0]));
        assert_eq!(prefix_end(b""), Bytes::from_static(&[0]));
    }

    #[test]
    fn pages_follow_the_size_of_entries() {
        assert_eq!(next_page(500, 500, 500 * 100), 2000);
        assert_eq!(next_page(2000, 2000, 2000 * 100), 8000);
        assert_eq!(next_page(8000, 8000, 8000 * 100), MAX_PAGE_KEYS);
        assert_eq!(next_page(500, 500, 500 << 20), 2);
        assert_eq!(next_page(2, 1, 1 << 29), 1);
        assert_eq!(next_page(500, 0, 20), 2000);
    }
}
