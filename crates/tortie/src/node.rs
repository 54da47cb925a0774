//! `tortie node`: runs this host's node in the foreground.

use std::error::Error;
use std::time::Duration;
use tortie_node::NodeArgs;

/// How long the end of the daemon waits for requests that are being worked on.
const PATIENCE: Duration = Duration::from_secs(2);

pub fn run(args: NodeArgs) -> Result<(), Box<dyn Error>> {
    // Also on a small machine: some of what they do waits for the kernel or the disk.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build()?;
    let outcome = runtime.block_on(tortie_node::run(args, tortie_ctl::release::API_LEVEL));
    // What is still at work waits for a runtime that is gone; the next start undoes what it had begun.
    runtime.shutdown_timeout(PATIENCE);
    Ok(outcome?)
}
