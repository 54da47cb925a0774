//! gRPC types of the etcd v3 protocol, generated from proto/. The etcd backend of the store and the embedded etcd
//! server share them.
#![allow(clippy::all, missing_docs)]

pub mod mvccpb {
    tonic::include_proto!("mvccpb");
}

pub mod etcdserverpb {
    tonic::include_proto!("etcdserverpb");
}
