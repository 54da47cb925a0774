//! Tests of the DHCP server: its messages and leases as functions, and the server with a real etcd, interfaces in
//! network namespaces and the DHCP clients of Debian. Needs root, iproute2, etcd, busybox, isc-dhcp-client.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod clients;
mod host;
mod hostile;
mod leases;
mod messages;
mod samples;
