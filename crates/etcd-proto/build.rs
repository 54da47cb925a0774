//! Compiles the etcd protocol without a system protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["proto/rpc.proto"], ["proto"])?;
    // Generate `Bytes` fields: the socket buffer, the store and the watchers share keys and values without copying.
    tonic_prost_build::configure().bytes(".").compile_fds(files)?;
    Ok(())
}
