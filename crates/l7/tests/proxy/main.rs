//! Tests of the server over real sockets: with a policy-sync server that sends generated plans, and gRPC clients in the
//! place of Envoy.
#![allow(clippy::unwrap_used, clippy::panic)]

mod differential;
mod fixture;
mod generate;
mod hostile;
mod sync;
