//! Tests the speaker with real sockets, a real kernel and third-party routers, each test in separate network
//! namespaces. Requires root, iproute2, bird2, frr and gobgpd.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod again;
mod bird;
mod floods;
mod frr;
mod gobgp;
mod neighbour;
mod own;
mod place;
mod reflector;
mod story;
