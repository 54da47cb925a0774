//! Generates docs/reference/cli.md: the command line reference.

use crate::TortieCli;
use clap::{Arg, Command, CommandFactory};
use std::fmt::Write;

const PAGE_HEADER: &str = "# Command line

<!-- Made from the code by `make docs-reference`. Do not edit. -->

Every command of `tortie`, with its options, as `tortie COMMAND --help` prints them. `calicoctl` is the same program as `tortie ctl`.
`man tortie` shows the same, where it is installed with `make install` or from the package.

";

#[test]
fn the_page_of_commands_is_current() {
    let mut command = TortieCli::command();
    command.build();
    let mut page = PAGE_HEADER.to_owned();
    render_contents(&command, &mut page);
    describe(&command, &[], &mut page);
    super::is_fresh("cli.md", &page);
    for part in [
        "## tortie policy watch\n",
        "## tortie lab top\n",
        "| `--from <PLACE>` |",
        "## tortie ctl ipam check\n",
    ] {
        assert!(page.contains(part), "{part} is not there");
    }
}

fn render_contents(command: &Command, page: &mut String) {
    for part in command.get_subcommands().filter(|part| !part.is_hide_set() && part.get_name() != "help") {
        let _ = writeln!(page, "- [`tortie {0}`](#tortie-{0}): {1}", part.get_name(), render_summary(part));
    }
    page.push('\n');
}

fn render_summary(command: &Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

/// Writes the section of a command and of all its subcommands.
fn describe(command: &Command, above: &[&str], page: &mut String) {
    let words = [above, &[command.get_name()]].concat();
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    let _ = write!(page, "## {}\n\n{}\n\n```text\n{usage}\n```\n", words.join(" "), escape_text(&about));
    let arguments: Vec<&Arg> =
        command.get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_id() != "help").collect();
    if !arguments.is_empty() {
        page.push_str("\n| option | default | meaning |\n| --- | --- | --- |\n");
        arguments.iter().for_each(|arg| {
            let _ = writeln!(page, "| {} | {} | {} |", name(arg), default(arg), render_meaning(arg));
        });
    }
    if let Some(after) = command.get_after_help() {
        let _ = write!(page, "\n```text\n{after}\n```\n");
    }
    page.push('\n');
    for part in command.get_subcommands().filter(|part| !part.is_hide_set() && part.get_name() != "help") {
        describe(part, &words, page);
    }
}

fn name(arg: &Arg) -> String {
    let values: Vec<String> =
        arg.get_value_names().unwrap_or_default().iter().map(|name| format!("<{name}>")).collect();
    let value = if arg.get_action().takes_values() { values.join(" ") } else { String::new() };
    let flags: Vec<String> = arg
        .get_short()
        .map(|letter| format!("-{letter}"))
        .into_iter()
        .chain(arg.get_long().map(|word| format!("--{word}")))
        .collect();
    format!("`{}`", [flags.join(", "), value].join(" ").trim())
}

fn default(arg: &Arg) -> String {
    let values: Vec<&str> =
        arg.get_default_values().iter().map(|value| value.to_str().unwrap_or_default()).collect();
    if values.is_empty() || !arg.get_action().takes_values() {
        return String::new();
    }
    format!("`{}`", values.join(" "))
}

fn render_meaning(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut text = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let choices = arg.get_possible_values();
    if !choices.is_empty() && !arg.is_hide_possible_values_set() && arg.get_action().takes_values() {
        let names: Vec<String> = choices
            .iter()
            .filter(|value| !value.is_hide_set())
            .map(|value| format!("`{}`", value.get_name()))
            .collect();
        text = format!("{text} ({})", names.join(", ")).trim().to_owned();
    }
    if let Some(variable) = arg.get_env().and_then(|name| name.to_str()) {
        text = format!("{text}; variable `{variable}`");
    }
    escape_text(&text).replace('|', "\\|")
}

/// Escapes angle brackets, which Markdown would take for tags.
fn escape_text(text: &str) -> String {
    text.replace('<', "&lt;")
}
