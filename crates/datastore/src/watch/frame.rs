//! One response on a watch stream. It is encoded only when it is sent, and its events are shared by all receivers.

use crate::change::KeyChange;
use crate::directory::StoreIdentity;
use bytes::{BufMut, Bytes, BytesMut};
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};
use std::sync::Arc;

/// Field numbers of `WatchResponse`.
mod field {
    pub const HEADER: u32 = 1;
    pub const WATCH_ID: u32 = 2;
    pub const CREATED: u32 = 3;
    pub const CANCELED: u32 = 4;
    pub const COMPACT_REVISION: u32 = 5;
    pub const CANCEL_REASON: u32 = 6;
    pub const FRAGMENT: u32 = 7;
    pub const EVENTS: u32 = 11;
}

/// A response about the state of a watch, or its events.
#[derive(Clone, Debug, Default)]
pub struct WatchFrame {
    pub revision: i64,
    pub watch_id: i64,
    pub created: bool,
    pub canceled: bool,
    pub compact_revision: i64,
    pub cancel_reason: &'static str,
    pub fragment: bool,
    pub events: Vec<Arc<KeyChange>>,
    pub with_previous: bool,
}

/// The Raft term in responses. This single member is always the leader, so the term is constant.
pub const RAFT_TERM: u64 = 2;

impl WatchFrame {
    /// Returns the approximate amount of memory that it keeps alive.
    pub fn size(&self) -> usize {
        128 + self.events.iter().map(|change| change.size()).sum::<usize>()
    }

    /// Splits a large response at event boundaries, for a client that requested fragments.
    pub fn fragments(mut self, limit: usize) -> Vec<WatchFrame> {
        let mut frames = Vec::new();
        let mut rest = std::mem::take(&mut self.events).into_iter().peekable();
        loop {
            let mut frame = WatchFrame { events: Vec::new(), ..self.clone() };
            let mut size = 0;
            while let Some(change) = rest.peek() {
                size += change.event(self.with_previous).len();
                if size > limit && !frame.events.is_empty() {
                    break;
                }
                frame.events.extend(rest.next());
            }
            frame.fragment = rest.peek().is_some();
            frames.push(frame);
            if rest.peek().is_none() {
                return frames;
            }
        }
    }

    /// Returns the encoded message up to its events.
    pub fn head(&self, identity: StoreIdentity) -> BytesMut {
        let mut out = BytesMut::with_capacity(64);
        let header = [(1, identity.cluster), (2, identity.member), (3, self.revision as u64), (4, RAFT_TERM)];
        let header_len = header
            .iter()
            .filter(|(_, value)| *value != 0)
            .map(|(_, v)| 1 + encoded_len_varint(*v))
            .sum::<usize>();
        encode_key(field::HEADER, WireType::LengthDelimited, &mut out);
        encode_varint(header_len as u64, &mut out);
        for (tag, value) in header {
            encode_number(tag, value, &mut out);
        }
        encode_number(field::WATCH_ID, self.watch_id as u64, &mut out);
        encode_number(field::CREATED, self.created.into(), &mut out);
        encode_number(field::CANCELED, self.canceled.into(), &mut out);
        encode_number(field::COMPACT_REVISION, self.compact_revision as u64, &mut out);
        if !self.cancel_reason.is_empty() {
            encode_key(field::CANCEL_REASON, WireType::LengthDelimited, &mut out);
            encode_varint(self.cancel_reason.len() as u64, &mut out);
            out.put_slice(self.cancel_reason.as_bytes());
        }
        encode_number(field::FRAGMENT, self.fragment.into(), &mut out);
        out
    }

    /// Returns the length of the encoded events.
    pub fn events_len(&self) -> usize {
        let lengths = self.events.iter().map(|change| change.event(self.with_previous).len());
        lengths.map(|len| 1 + encoded_len_varint(len as u64) + len).sum()
    }

    pub fn encode_events(&self, out: &mut impl EventSink) {
        for change in &self.events {
            let event = change.event(self.with_previous);
            encode_key(field::EVENTS, WireType::LengthDelimited, out.copied());
            encode_varint(event.len() as u64, out.copied());
            out.shared(event);
        }
    }
}

/// A destination of encoded bytes that can share the bytes of events instead of copying them.
pub trait EventSink {
    fn copied(&mut self) -> &mut BytesMut;
    fn shared(&mut self, bytes: &Bytes);
}

fn encode_number(tag: u32, value: u64, out: &mut impl BufMut) {
    if value != 0 {
        encode_key(tag, WireType::Varint, out);
        encode_varint(value, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;
    use tortie_etcd_proto::etcdserverpb::{ResponseHeader, WatchResponse};
    use tortie_etcd_proto::mvccpb::event::EventType;
    use tortie_etcd_proto::mvccpb::{Event, KeyValue};

    fn kv(key: &'static str, value: usize) -> KeyValue {
        KeyValue { key: key.into(), value: vec![7; value].into(), mod_revision: 9, ..Default::default() }
    }

    struct CopyingSink(BytesMut);

    impl EventSink for CopyingSink {
        fn copied(&mut self) -> &mut BytesMut {
            &mut self.0
        }

        fn shared(&mut self, bytes: &Bytes) {
            self.0.put_slice(bytes);
        }
    }

    fn decode(frame: &WatchFrame) -> WatchResponse {
        let mut out = CopyingSink(frame.head(StoreIdentity { cluster: u64::MAX, member: 3 }));
        let expected = out.0.len() + frame.events_len();
        frame.encode_events(&mut out);
        assert_eq!(out.0.len(), expected);
        WatchResponse::decode(out.0.freeze()).unwrap()
    }

    #[test]
    fn a_frame_is_a_watch_response() {
        let frame = WatchFrame {
            revision: 9,
            watch_id: -1,
            created: true,
            canceled: true,
            compact_revision: 5,
            cancel_reason: "why",
            fragment: true,
            events: vec![
                Arc::new(KeyChange::put(kv("a", 3), Some(kv("a", 2)))),
                Arc::new(KeyChange::delete(Bytes::from("b"), 9, None)),
            ],
            with_previous: true,
        };
        let expected = WatchResponse {
            header: Some(ResponseHeader {
                cluster_id: u64::MAX,
                member_id: 3,
                revision: 9,
                raft_term: RAFT_TERM,
            }),
            watch_id: -1,
            created: true,
            canceled: true,
            compact_revision: 5,
            cancel_reason: "why".into(),
            fragment: true,
            events: vec![
                Event { r#type: EventType::Put.into(), kv: Some(kv("a", 3)), prev_kv: Some(kv("a", 2)) },
                Event {
                    r#type: EventType::Delete.into(),
                    kv: Some(KeyValue { key: "b".into(), mod_revision: 9, ..Default::default() }),
                    prev_kv: None,
                },
            ],
        };
        assert_eq!(decode(&frame), expected);
        let plain = decode(&WatchFrame { with_previous: false, ..frame });
        assert_eq!(plain.events[0].prev_kv, None);
    }

    #[test]
    fn fragments_keep_every_event_in_order() {
        let keys = ["a", "b", "c", "d", "e"];
        let events: Vec<_> = keys.iter().map(|k| Arc::new(KeyChange::put(kv(k, 100), None))).collect();
        let frame = WatchFrame { events, ..WatchFrame::default() };
        let parts = frame.clone().fragments(250);
        assert_eq!(parts.iter().map(|p| p.fragment).collect::<Vec<_>>(), [true, true, false]);
        let seen: Vec<_> = parts.iter().flat_map(|p| &p.events).map(|c| c.kv.key.clone()).collect();
        assert_eq!(seen, keys);
        assert_eq!(frame.fragments(1).len(), 5);
        assert_eq!(WatchFrame::default().fragments(1).len(), 1);
    }
}
