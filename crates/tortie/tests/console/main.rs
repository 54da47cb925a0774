//! `tortie console` as a process: access control, outages of the datastore, and the pages in a browser.
#![allow(clippy::unwrap_used, clippy::panic)]

mod access;
mod assets;
mod browser;
#[path = "../lab/lab.rs"]
#[allow(dead_code, reason = "the scenarios of tests/lab use the rest")]
mod lab;
mod server;
