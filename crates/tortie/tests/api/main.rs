//! `tortie apiserver` as a process behind a real kube-apiserver, with the service account and the APIService of
//! `deploy/apiserver`; the clients are the real kubectl and calicoctl.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod backlog;
mod same;
mod world;
