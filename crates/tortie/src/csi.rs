//! `tortie csi`: the CSI driver csi.tigera.io. Called as `uds`, the program is the FlexVolume driver.

use clap::Args;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tortie_csi::{CsiError, CsiOptions, DEFAULT_KUBELET_DIR, DEFAULT_PREFIX, FLEXVOLUME_CONFIG_FILE};

#[derive(Args, Debug)]
pub struct CsiArgs {
    /// Name of the node in Kubernetes
    #[arg(long, visible_alias = "nodeid", value_name = "NAME", env = "NODENAME")]
    node_name: String,
    /// Directory of kubelet, at the same path in the container of the driver and on the host
    #[arg(long, value_name = "DIR", default_value = DEFAULT_KUBELET_DIR)]
    kubelet_dir: PathBuf,
    /// policySyncPathPrefix of the FelixConfiguration
    #[arg(long, value_name = "DIR", default_value = DEFAULT_PREFIX)]
    policy_sync_prefix: PathBuf,
    /// Directory of kubelet's FlexVolume drivers, in which to install nodeagent/uds too [default: none]
    #[arg(long, value_name = "DIR", env = "FLEXVOLUME_DIR")]
    flexvolume_dir: Option<PathBuf>,
}

/// Runs the driver until a signal, or until kubelet refuses it.
pub fn run(args: CsiArgs) -> Result<(), CsiError> {
    let options = CsiOptions {
        node_name: args.node_name,
        kubelet_dir: args.kubelet_dir,
        prefix: args.policy_sync_prefix,
        flexvolume_dir: args.flexvolume_dir,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    // One thread serves kubelet; system calls that may block run on other threads.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CsiError::Runtime)?;
    runtime.block_on(tortie_csi::run(options))
}

/// Runs a command of kubelet for a FlexVolume. Arguments that are not UTF-8 are not supported.
pub fn run_flexvolume(args: &[OsString], out: &mut dyn Write) -> ExitCode {
    let words: Vec<&str> = args.iter().skip(1).map(|word| word.to_str().unwrap_or_default()).collect();
    tortie_csi::run_flexvolume(&words, Path::new(FLEXVOLUME_CONFIG_FILE), out)
}
