//! Writes seeds for the target `etcd_request`: `cargo run --example etcd_seeds`.

use prost::Message;
use std::path::Path;
use tortie_etcd_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use tortie_etcd_proto::etcdserverpb::request_op::Request;
use tortie_etcd_proto::etcdserverpb::{
    CompactionRequest, Compare, DeleteRangeRequest, LeaseGrantRequest, LeaseRevokeRequest, PutRequest,
    RangeRequest, RequestOp, TxnRequest,
};

fn main() -> std::io::Result<()> {
    let put = |key: &'static str, value: &'static str, lease| PutRequest {
        key: key.into(),
        value: value.into(),
        lease,
        prev_kv: true,
        ..Default::default()
    };
    let range = |key: &'static str, end: &'static str, revision| RangeRequest {
        key: key.into(),
        range_end: end.into(),
        revision,
        limit: 2,
        ..Default::default()
    };
    let delete = |key: &'static str, end: &'static str| DeleteRangeRequest {
        key: key.into(),
        range_end: end.into(),
        prev_kv: true,
    };
    let op = |request| RequestOp { request: Some(request) };
    let compare = |key: &'static str, version| Compare {
        key: key.into(),
        result: CompareResult::Equal.into(),
        target: CompareTarget::Version.into(),
        target_union: Some(TargetUnion::Version(version)),
        ..Default::default()
    };
    let create = TxnRequest {
        compare: vec![compare("/a", 0)],
        success: vec![
            op(Request::RequestPut(put("/a", "1", 0))),
            op(Request::RequestRange(range("/", "0", 0))),
        ],
        failure: vec![op(Request::RequestDeleteRange(delete("/a", "")))],
    };
    let nested = TxnRequest {
        compare: vec![compare("/b", 1)],
        success: vec![op(Request::RequestTxn(create.clone())), op(Request::RequestPut(put("/c", "x", 0)))],
        failure: vec![op(Request::RequestTxn(create.clone()))],
    };
    let read =
        TxnRequest { success: vec![op(Request::RequestRange(range("/", "0", 2)))], ..Default::default() };
    let seeds: [(&str, Vec<(u8, Vec<u8>)>); 4] = [
        (
            "keys",
            vec![
                (1, put("/a", "1", 0).encode_to_vec()),
                (0x81, put("/b", "2", 0).encode_to_vec()),
                (1, put("/a", "3", 0).encode_to_vec()),
                (0, range("/a", "", 0).encode_to_vec()),
                (0, range("/", "0", 2).encode_to_vec()),
                (2, delete("/a", "/c").encode_to_vec()),
                (0, range("/", "\0", 3).encode_to_vec()),
            ],
        ),
        (
            "transactions",
            vec![
                (3, create.encode_to_vec()),
                (1, put("/b", "2", 0).encode_to_vec()),
                (3, nested.encode_to_vec()),
                (3, nested.encode_to_vec()),
                (3, read.encode_to_vec()),
            ],
        ),
        (
            "leases",
            vec![
                (4, LeaseGrantRequest { ttl: 10, id: 7 }.encode_to_vec()),
                (1, put("/a", "1", 7).encode_to_vec()),
                (0x81, put("/b", "1", 7).encode_to_vec()),
                (1, PutRequest { ignore_lease: true, ..put("/b", "2", 0) }.encode_to_vec()),
                (5, LeaseRevokeRequest { id: 7 }.encode_to_vec()),
                (1, put("/a", "1", 7).encode_to_vec()),
            ],
        ),
        (
            "compaction",
            vec![
                (1, put("/a", "1", 0).encode_to_vec()),
                (1, put("/a", "2", 0).encode_to_vec()),
                (2, delete("/a", "").encode_to_vec()),
                (1, put("/b", "3", 0).encode_to_vec()),
                (6, CompactionRequest { revision: 4, physical: true }.encode_to_vec()),
                (0, range("/", "0", 3).encode_to_vec()),
                (1, put("/a", "4", 0).encode_to_vec()),
                (6, CompactionRequest { revision: 5, physical: false }.encode_to_vec()),
            ],
        ),
    ];
    for (name, requests) in seeds {
        let mut bytes = Vec::new();
        for (kind, message) in requests {
            bytes.push(kind);
            bytes.extend(u16::try_from(message.len()).unwrap_or(u16::MAX).to_le_bytes());
            bytes.extend(message);
        }
        std::fs::write(Path::new("seeds/etcd_request").join(name), bytes)?;
    }
    Ok(())
}
