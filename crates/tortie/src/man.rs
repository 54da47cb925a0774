//! `tortie man DIR`: writes a man page for each command, generated from the help texts.

use crate::TortieCli;
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use std::io::Write;
use std::path::Path;
use tortie_ctl::{Cli, CommandError};

/// Writes `tortie.1`, `tortie-lab.1`, `tortie-lab-up.1`, ..., and the same for `calicoctl`.
pub fn write(directory: &Path, out: &mut dyn Write) -> Result<(), CommandError> {
    let written = write_all(directory).map_err(|error| CommandError::at(directory, &error))?;
    Ok(writeln!(out, "Wrote {written} man pages to {}", directory.display())?)
}

fn write_all(directory: &Path) -> std::io::Result<usize> {
    std::fs::create_dir_all(directory)?;
    let mut written = 0;
    // `tortie ctl` is calicoctl, which has its own pages.
    let tortie = TortieCli::command().mut_subcommand("ctl", |ctl| ctl.hide(true));
    for mut command in [tortie, Cli::command()] {
        command.build();
        let name = command.get_name().to_owned();
        written += write_pages(&command, &name, directory)?;
    }
    Ok(written)
}

/// Writes the page of a command and of all its subcommands. Returns their number.
fn write_pages(command: &Command, name: &str, directory: &Path) -> std::io::Result<usize> {
    let mut text = Vec::new();
    Man::new(command.clone()).render(&mut text)?;
    std::fs::write(directory.join(format!("{name}.1")), text)?;
    let mut written = 1;
    for part in command.get_subcommands().filter(|part| !part.is_hide_set() && part.get_name() != "help") {
        written += write_pages(part, &format!("{name}-{}", part.get_name()), directory)?;
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_valid_man_page() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &mut Vec::new()).unwrap();
        for name in ["tortie", "tortie-lab-up", "tortie-policy-watch", "calicoctl", "calicoctl-ipam-check"] {
            let text = std::fs::read_to_string(dir.path().join(format!("{name}.1"))).unwrap();
            assert!(text.contains(".TH ") && text.contains(".SH SYNOPSIS"), "{name}: {text}");
        }
        assert!(!dir.path().join("tortie-supervise.1").exists(), "hidden commands have none");
        let page = std::fs::read_to_string(dir.path().join("tortie-policy-watch.1")).unwrap();
        assert!(
            page.contains("tortie policy watch \\-\\-only deny")
                || page.contains("tortie policy watch --only deny"),
            "{page}"
        );
    }
}
