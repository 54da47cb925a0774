//! Compiles the plugin executable, which the library embeds.
//!
//! Stable Cargo cannot depend on the binary of another package. The plugin has no dependencies, so `rustc` alone is
//! enough to build it.

use std::env;
use std::error::Error;
use std::path::Path;
use std::process::{Command, Output};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=src");
    println!("cargo:rerun-if-changed=build.rs");
    // Linked statically: the executable is copied from the image to hosts whose C library may be older.
    let linked = compile(true)?;
    if linked.status.success() {
        return Ok(());
    }
    println!(
        "cargo:warning=the CNI plugins need the C library of this machine, there is no static one: {}",
        messages(&linked)
    );
    let linked = compile(false)?;
    if linked.status.success() { Ok(()) } else { Err(messages(&linked).into()) }
}

/// Compiles `src/program.rs` and returns the output of the compiler.
fn compile(without_libraries: bool) -> Result<Output, Box<dyn Error>> {
    let mut compiler = Command::new(env::var("RUSTC")?);
    compiler.args(["--edition=2024", "--crate-name=calico", "--crate-type=bin", "src/program.rs"]);
    // The same modules are linted as part of the library.
    compiler.args(["--cap-lints=allow", "--target", &env::var("TARGET")?]);
    compiler.args(["-Copt-level=s", "-Ccodegen-units=1", "-Clto=fat", "-Cpanic=abort", "-Cstrip=symbols"]);
    if without_libraries {
        compiler.arg("-Ctarget-feature=+crt-static");
    }
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        compiler.arg(format!("-Clinker={linker}"));
    }
    Ok(compiler.arg("-o").arg(Path::new(&env::var("OUT_DIR")?).join("program")).output()?)
}

fn messages(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().replace('\n', " ")
}
