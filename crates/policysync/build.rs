//! Compiles the policy-sync protocol without a system protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["proto/policysync.proto"], ["proto"])?;
    // Ordered maps, so that equal objects have equal encodings.
    tonic_prost_build::configure().btree_map(".").compile_fds(files)?;
    Ok(())
}
