//! completion: a script for the user's shell.

use crate::failure::Result;
use clap_complete::{Shell, generate};
use std::io::Write;

/// The script that completes `program`, whose command tree is `command`.
pub fn completion(
    shell: Shell,
    mut command: clap::Command,
    program: &str,
    out: &mut dyn Write,
) -> Result<()> {
    // Written to memory first: the generator panics on a reader that goes away.
    let mut script = Vec::new();
    generate(shell, &mut command, program, &mut script);
    out.write_all(&script)?;
    Ok(())
}
