//! Integration tests of the API server behind a real kube-apiserver, with a real kubectl.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod controllers;
mod custom;
mod differential;
mod kubectl;
mod openapi;
mod rules;
mod strangers;
mod watches;
mod world;
