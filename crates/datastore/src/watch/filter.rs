//! The events that one watch selects.

use crate::change::KeyChange;
use crate::key_span::KeySpan;
use bytes::Bytes;
use tortie_etcd_proto::etcdserverpb::WatchCreateRequest;
use tortie_etcd_proto::etcdserverpb::watch_create_request::FilterType;

#[derive(Clone, Debug)]
pub struct WatchFilter {
    pub id: i64,
    /// Distinguishes a watch from an earlier one with the same ID.
    pub serial: u64,
    pub span: KeySpan,
    pub puts: bool,
    pub deletes: bool,
    pub with_previous: bool,
    pub fragment: bool,
    pub progress: bool,
}

impl WatchFilter {
    pub fn new(id: i64, serial: u64, request: &WatchCreateRequest) -> WatchFilter {
        // An empty key means the smallest one.
        let key = if request.key.is_empty() { Bytes::from_static(&[0]) } else { request.key.clone() };
        WatchFilter {
            id,
            serial,
            span: KeySpan::new(&key, &request.range_end),
            puts: !request.filters().any(|filter| filter == FilterType::Noput),
            deletes: !request.filters().any(|filter| filter == FilterType::Nodelete),
            with_previous: request.prev_kv,
            fragment: request.fragment,
            progress: request.progress_notify,
        }
    }

    /// Returns whether the watch selects a change of a key that is known to be in the span.
    pub fn wants(&self, change: &KeyChange) -> bool {
        if change.deleted { self.deletes } else { self.puts }
    }
}
