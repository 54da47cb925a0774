//! Errors of commands, with the messages for standard error.

use crate::commands::UnknownKind;
use crate::input::InputError;
use crate::migrate::ipam::AddressRecordError;
use crate::namespace::NamespaceError;
use crate::outcome::BatchReport;
use crate::output::OutputError;
use crate::policy::{ChangeError, EndpointError};
use crate::verbs::VerbError;
use std::error::Error;
use std::io::{self, Write};
use std::path::Path;

type BoxedError = Box<dyn Error + Send + Sync>;

#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// An invalid argument or state, or an error that needs no other handling than to be printed.
    #[error(transparent)]
    Other(BoxedError),
    #[error("{context}: {source}")]
    Context { context: String, source: BoxedError },
    #[error("unknown log level: {0}, expected one of: panic, fatal, error, warn, info, debug")]
    UnknownLogLevel(String),
    #[error("resource name may not be empty")]
    EmptyName,
    #[error(transparent)]
    UnknownKind(#[from] UnknownKind),
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    #[error(transparent)]
    Verb(#[from] VerbError),
    #[error(transparent)]
    Format(#[from] OutputError),
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error(transparent)]
    Change(#[from] ChangeError),
    #[error(transparent)]
    AddressRecord(#[from] AddressRecordError),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("failed to execute command: {0}")]
    Input(InputError),
    /// The input contains no resources.
    #[error("{0}")]
    Empty(InputError),
    #[error("Failed to create Calico API client: {0}")]
    NoClient(tortie_store::StoreError),
    #[error(transparent)]
    Store(#[from] tortie_store::StoreError),
    #[error(transparent)]
    Output(#[from] io::Error),
}

impl CommandError {
    /// Creates an error from a text or from another error.
    pub fn message(error: impl Into<BoxedError>) -> CommandError {
        CommandError::Other(error.into())
    }

    /// Creates an error whose message is that of another error after a prefix.
    pub fn context(context: impl Into<String>, error: impl Into<BoxedError>) -> CommandError {
        CommandError::Context { context: context.into(), source: error.into() }
    }

    /// Creates a failure for an I/O error on a file, directory or socket. The message advises how to get
    /// missing permissions.
    pub fn at(path: &Path, error: &io::Error) -> CommandError {
        let advice = if error.kind() == io::ErrorKind::PermissionDenied { "; run as root" } else { "" };
        CommandError::message(format!("{}: {error}{advice}", path.display()))
    }

    /// Returns whether the operating system denied access to a file or an object of the kernel.
    pub fn is_permission_denied(&self) -> bool {
        let first: Option<&(dyn Error + 'static)> = match self {
            // Transparent variants hide the error that they contain from `source`.
            CommandError::Other(error) => Some(&**error),
            CommandError::Output(error) => Some(error),
            other => other.source(),
        };
        let mut causes = std::iter::successors(first, |error: &&(dyn Error + 'static)| (*error).source());
        causes.any(|cause| {
            cause
                .downcast_ref::<io::Error>()
                .is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
        })
    }

    /// Returns whether the reader of the output closed the pipe, which needs no error message.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, CommandError::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

impl From<InputError> for CommandError {
    fn from(error: InputError) -> CommandError {
        if error.is_empty() { CommandError::Empty(error) } else { CommandError::Input(error) }
    }
}

pub type CommandResult<T> = std::result::Result<T, CommandError>;

/// Prints a report and returns its error, if any, as the error of the command.
pub fn print_report(report: BatchReport, out: &mut dyn Write) -> CommandResult<()> {
    out.write_all(report.out.as_bytes())?;
    out.flush()?;
    report.error.map_or(Ok(()), |error| Err(CommandError::message(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{path}: {source}")]
    struct LockFailure {
        path: &'static str,
        source: io::Error,
    }

    fn denied() -> io::Error {
        io::Error::from(io::ErrorKind::PermissionDenied)
    }

    #[test]
    fn denied_access_is_found_in_every_chain() {
        let lock = LockFailure { path: "/run/lock", source: denied() };
        for error in [
            CommandError::message(denied()),
            CommandError::message(lock),
            CommandError::context("report.json", denied()),
            CommandError::Output(denied()),
        ] {
            assert!(error.is_permission_denied(), "{error:?}");
        }
    }

    #[test]
    fn advice_is_given_once() {
        let path = Path::new("/run/node.sock");
        let error = CommandError::at(path, &denied());
        assert_eq!(error.to_string(), "/run/node.sock: permission denied; run as root");
        assert!(!error.is_permission_denied(), "its message contains the advice already");
        assert!(!CommandError::at(path, &io::Error::from(io::ErrorKind::NotFound)).is_permission_denied());
    }
}
