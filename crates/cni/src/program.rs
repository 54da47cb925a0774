//! Crate root of the plugin executable that `build.rs` compiles from the modules of this library. The name of the
//! executable (`argv[0]`) selects the plugin.

mod error;
mod log_file;
mod request;
mod serve;
mod socket;

use request::CniPlugin;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let called = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&called).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    // An executable that was installed under another name acts as the `calico` plugin.
    serve::run(CniPlugin::from_name(name).unwrap_or(CniPlugin::Calico), env!("CARGO_PKG_VERSION"))
}
