//! A build for development is linked to fixed addresses. Without optimisation the binary has 400 000 places that the dynamic
//! loader would have to fill in each time it is started, and tests start it thousands of times.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if has_value("PROFILE", "debug") && has_value("CARGO_CFG_TARGET_OS", "linux") {
        println!("cargo:rustc-link-arg=-no-pie");
    }
}

fn has_value(variable: &str, value: &str) -> bool {
    std::env::var(variable).is_ok_and(|found| found == value)
}
