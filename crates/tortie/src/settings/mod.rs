//! `tortie settings`: shows every parameter, its value in effect on this node, and the source of the value.

mod page;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;
use tortie_compute::{NodeParameters, ParameterEffect, ResolvedParameter, describe_parameter};
use tortie_ctl::node::request;
use tortie_ctl::{CommandError, layout};

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  tortie settings                    parameters that differ from the built-in defaults
  tortie settings --all              every parameter
  tortie settings healthPort bpf     parameters whose names contain one of these words
  tortie settings --all -o json      for programs")]
pub struct SettingsArgs {
    /// Show only parameters whose names contain one of these words, case-insensitive
    #[arg(value_name = "WORD")]
    words: Vec<String>,
    /// Also show parameters with default values
    #[arg(short, long)]
    all: bool,
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value = "table")]
    output: SettingsFormat,
    /// Directory of the node's sockets
    #[arg(long, value_name = "DIR", env = "TORTIE_RUN_DIR", default_value = "/run/tortie")]
    run_dir: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SettingsFormat {
    Table,
    Json,
}

impl SettingsArgs {
    fn selects(&self, name: &str, source: &str) -> bool {
        if self.words.is_empty() {
            return self.all || source != "built-in";
        }
        let name = name.to_lowercase();
        self.words.iter().any(|word| name.contains(&word.to_lowercase()))
    }
}

pub fn run(args: &SettingsArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let answer = request(&args.run_dir, "settings")?;
    let mut settings = Vec::new();
    for ResolvedParameter { parameter, effect, .. } in NodeParameters::default().all() {
        let answers = answer["settings"].as_array().into_iter().flatten();
        let Some(of_node) = answers.into_iter().find(|setting| setting["name"] == parameter.key) else {
            continue;
        };
        let [value, source, from] =
            ["value", "source", "from"].map(|field| of_node[field].as_str().unwrap_or_default().to_owned());
        if args.selects(parameter.key, &source) {
            settings.push(SettingRow {
                name: parameter.key,
                value,
                default: parameter.default,
                source,
                from,
                effect,
            });
        }
    }
    if settings.is_empty() && !args.words.is_empty() {
        return Err(CommandError::message(format!(
            "no parameter has {} in its name",
            args.words.join(" or ")
        )));
    }
    match args.output {
        SettingsFormat::Json => {
            writeln!(out, "{:#}", Value::Array(settings.iter().map(SettingRow::object).collect()))?
        }
        SettingsFormat::Table => {
            let headings = ["NAME", "VALUE", "FROM", "EFFECT"].map(str::to_owned).to_vec();
            let rows = std::iter::once(headings).chain(settings.iter().map(SettingRow::row));
            out.write_all(layout(&rows.collect::<Vec<_>>()).as_bytes())?;
        }
    }
    Ok(())
}

struct SettingRow {
    name: &'static str,
    value: String,
    default: &'static str,
    source: String,
    from: String,
    effect: ParameterEffect,
}

impl SettingRow {
    fn row(&self) -> Vec<String> {
        let effect = match self.effect {
            ParameterEffect::Live { .. } => "live".to_owned(),
            ParameterEffect::AtStart { .. } => "at restart".to_owned(),
            ParameterEffect::None { why } => format!("none: {why}"),
        };
        let value = if self.value.is_empty() { "-" } else { &self.value };
        vec![self.name.to_owned(), value.to_owned(), self.from.clone(), effect]
    }

    fn object(&self) -> Value {
        let (effect, since, reason) = match self.effect {
            ParameterEffect::Live { since } => ("live", Some(since), None),
            ParameterEffect::AtStart { since } => ("at restart", Some(since), None),
            ParameterEffect::None { why } => ("none", None, Some(why)),
        };
        json!({
            "name": self.name, "value": self.value, "default": self.default,
            "source": self.source, "from": self.from,
            "effect": effect, "since": since, "reason": reason,
            "description": describe_parameter(self.name),
        })
    }
}
