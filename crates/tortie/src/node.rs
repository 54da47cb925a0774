//! `tortie node`: runs this host's node in the foreground.

use std::error::Error;
use tortie_node::NodeArgs;

pub fn run(args: NodeArgs) -> Result<(), Box<dyn Error>> {
    // Also on a small machine: some of what they do waits for the kernel or the disk.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build()?;
    Ok(runtime.block_on(tortie_node::run(args, tortie_ctl::release::API_LEVEL))?)
}
