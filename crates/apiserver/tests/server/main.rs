//! The API server behind a real kube-apiserver, asked by a real kubectl.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod controllers;
mod differential;
mod kubectl;
mod rules;
mod strangers;
mod watches;
mod world;
