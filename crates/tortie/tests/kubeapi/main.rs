//! The node daemon on the Kubernetes API: a real API server, real namespaces, real packets. Pods are objects; there is no
//! kubelet but the test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod condition;
mod controllers;
mod moving;
mod outage;
mod pods;
mod services;
mod token;
mod world;
