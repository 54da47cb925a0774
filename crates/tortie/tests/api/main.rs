//! `tortie apiserver` as a program, run with the account and the registration that `deploy/apiserver` has, behind a real kube-apiserver;
//! real kubectl and real calicoctl ask.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod backlog;
mod same;
mod world;
