//! Compiles the protocols of Envoy and of the health probes without a system protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let names = ["ext_authz_v3.proto", "ext_authz_v2.proto", "ext_authz_v2alpha.proto", "healthz.proto"];
    tonic_prost_build::configure().compile_fds(protox::compile(names, ["proto"])?)?;
    Ok(())
}
