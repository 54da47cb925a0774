//! The root of the program that `build.rs` makes of the same modules; its name says which of the plugins is meant.

mod error;
mod request;
mod serve;
mod socket;

use request::Plugin;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let called = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&called).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    // A runtime that was given it by another name means the plugin that wires pods.
    serve::run(Plugin::from_name(name).unwrap_or(Plugin::Calico), env!("CARGO_PKG_VERSION"))
}
