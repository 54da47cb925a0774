//! `completion`: prints a completion script for the user's shell.

use crate::failure::CommandResult;
use crate::kind_word::CLI_KINDS;
use clap_complete::{Shell, generate};
use std::io::Write;

/// Writes the completion script for `program` with the command tree `command`.
pub fn completion(
    shell: Shell,
    mut command: clap::Command,
    program: &str,
    out: &mut dyn Write,
) -> CommandResult<()> {
    // Written to memory first: the generator panics on write errors such as a closed pipe.
    let mut script = Vec::new();
    generate(shell, &mut command, program, &mut script);
    if shell == Shell::Fish {
        script.extend_from_slice(fish_kinds(program).as_bytes());
    }
    out.write_all(&script)?;
    Ok(())
}

/// Returns completions of kinds for fish, whose generator omits the values of positional arguments.
fn fish_kinds(program: &str) -> String {
    let kinds: Vec<_> = CLI_KINDS.iter().map(|kind| kind.plural()).collect();
    format!(
        "complete -c {program} -n \"__fish_seen_subcommand_from get delete patch label\" -f -a \"{}\"\n",
        kinds.join(" ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_shell_completes_kinds() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            completion(shell, crate::Cli::command(), "calicoctl", &mut script).unwrap();
            let script = String::from_utf8(script).unwrap();
            for word in ["globalnetworkpolicies", "migrate-policy-names", "all-namespaces"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
        }
    }
}
