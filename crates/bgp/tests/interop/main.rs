//! The speaker with real sockets, real kernels and other people's routers, each test in network namespaces of its
//! own. Needs root, iproute2, bird2, frr and gobgpd.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod again;
mod bird;
mod floods;
mod frr;
mod gobgp;
mod own;
mod place;
mod reflector;
mod story;
