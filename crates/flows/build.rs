//! Compiles the protocol of Goldmane without a system protoc.

/// Messages that are hashed to recognise flows that a node sends again.
const HASHED_MESSAGES: [&str; 4] =
    [".goldmane.Flow", ".goldmane.FlowKey", ".goldmane.PolicyTrace", ".goldmane.PolicyHit"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["proto/goldmane.proto"], ["proto"])?;
    // Without `connect` of the clients, whose name collides with the method Connect.
    let mut builder = tonic_prost_build::configure().build_transport(false);
    for message in HASHED_MESSAGES {
        builder = builder.type_attribute(message, "#[derive(Eq, Hash)]");
    }
    builder.compile_fds(files)?;
    Ok(())
}
