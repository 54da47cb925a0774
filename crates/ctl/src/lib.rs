#![doc = include_str!("../README.md")]

pub mod analyze;
pub mod cli;
mod cluster;
mod commands;
mod failure;
mod field_names;
pub mod input;
pub mod ipam;
mod kind_word;
mod migrate;
mod namespace;
pub mod node;
mod outcome;
mod output;
mod patching;
pub mod policy;
mod progress;
pub mod release;
pub mod session;
mod suggestion;
mod verbs;

pub use cli::Cli;
pub use commands::completion::completion;
pub use commands::unknown_kind;
pub use failure::CommandError;
pub use output::table::layout;

use clap::CommandFactory;
use cli::{CtlCommand, DatastoreCommand, MigrateCommand};
use commands::write::WriteVerb;
use failure::CommandResult;
use std::io::Write;
use tracing::level_filters::LevelFilter;

/// Runs one command. Output goes to `out`; errors are returned.
pub async fn run(cli: &Cli, out: &mut dyn Write) -> CommandResult<()> {
    let global = &cli.global;
    match &cli.command {
        CtlCommand::Create(args) => {
            let verb = WriteVerb::Create { skip_exists: args.skip_exists };
            commands::write::write(&args.input, global, verb, out).await
        }
        CtlCommand::Apply(args) => commands::write::write(args, global, WriteVerb::Apply, out).await,
        CtlCommand::Replace(args) => commands::write::write(args, global, WriteVerb::Replace, out).await,
        CtlCommand::Validate(args) => commands::write::validate(args, out),
        CtlCommand::Delete(args) => commands::delete::delete(args, global, out).await,
        CtlCommand::Get(args) => commands::get::get(args, global, out).await,
        CtlCommand::Patch(args) => commands::patch::patch(args, global, out).await,
        CtlCommand::Label(args) => commands::label::label(args, global, out).await,
        CtlCommand::Version(args) => commands::version::version(args, out).await,
        CtlCommand::Completion(args) => completion(args.shell, Cli::command(), "calicoctl", out),
        CtlCommand::Ipam(args) => ipam::run(args, global, out).await,
        CtlCommand::Node(args) => node::run(args, out),
        CtlCommand::Cluster(args) => cluster::run(args, global, out).await,
        CtlCommand::Datastore(args) => match &args.command {
            DatastoreCommand::MigratePolicyNames(connection) => {
                migrate::policy_names::migrate(connection, global, out).await
            }
            DatastoreCommand::Migrate(migration) => match &migration.command {
                MigrateCommand::Export(connection) => migrate::export::export(connection, global, out).await,
                MigrateCommand::Import(args) => migrate::import::import(args, out).await,
                MigrateCommand::Lock(connection) => migrate::lock::lock(connection, global, true, out).await,
                MigrateCommand::Unlock(connection) => {
                    migrate::lock::lock(connection, global, false, out).await
                }
            },
        },
    }
}

/// Returns the log filter for a `--log-level`.
pub fn log_filter(level: &str) -> CommandResult<LevelFilter> {
    match level {
        "panic" | "fatal" => Ok(LevelFilter::OFF),
        "error" => Ok(LevelFilter::ERROR),
        "warn" => Ok(LevelFilter::WARN),
        "info" => Ok(LevelFilter::INFO),
        "debug" => Ok(LevelFilter::DEBUG),
        other => Err(CommandError::UnknownLogLevel(other.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_levels() {
        assert_eq!(log_filter("panic").unwrap(), LevelFilter::OFF);
        assert_eq!(log_filter("debug").unwrap(), LevelFilter::DEBUG);
        assert_eq!(
            log_filter("loud").unwrap_err().to_string(),
            "unknown log level: loud, expected one of: panic, fatal, error, warn, info, debug"
        );
    }
}
