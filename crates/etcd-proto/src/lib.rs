//! The etcd v3 protocol, generated from proto/: shared by the store's etcd backend and by the embedded server.
#![allow(clippy::all, missing_docs)]

pub mod mvccpb {
    tonic::include_proto!("mvccpb");
}

pub mod etcdserverpb {
    tonic::include_proto!("etcdserverpb");
}
