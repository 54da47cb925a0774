//! `tortie node`: runs this host's node in the foreground.

use std::error::Error;
use tortie_node::NodeArgs;

pub fn run(args: NodeArgs) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(std::thread::available_parallelism().map_or(2, |n| n.get().min(4)))
        .enable_all()
        .build()?;
    Ok(runtime.block_on(tortie_node::run(args, tortie_ctl::release::API_LEVEL))?)
}
