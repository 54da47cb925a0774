//! Errors of commands, with the messages for standard error.

use crate::input::InputError;
use crate::outcome::Report;
use std::io::{self, Write};

#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    Message(String),
    #[error("failed to execute command: {0}")]
    Input(InputError),
    /// The input contains no resources.
    #[error("{0}")]
    Empty(InputError),
    #[error("Failed to create Calico API client: {0}")]
    NoClient(tortie_store::Error),
    #[error(transparent)]
    Store(#[from] tortie_store::Error),
    #[error(transparent)]
    Output(#[from] io::Error),
}

impl Failure {
    pub fn message(text: impl Into<String>) -> Failure {
        Failure::Message(text.into())
    }

    /// Creates a failure for an I/O error on a file, directory or socket. The message advises how to get
    /// missing permissions.
    pub fn at(path: &std::path::Path, error: &io::Error) -> Failure {
        let advice = match error.kind() {
            io::ErrorKind::PermissionDenied => "; run as root",
            _ => "",
        };
        Failure::Message(format!("{}: {error}{advice}", path.display()))
    }

    /// Returns whether the reader of the output closed the pipe, which needs no error message.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

impl From<InputError> for Failure {
    fn from(error: InputError) -> Failure {
        if error.is_empty() { Failure::Empty(error) } else { Failure::Input(error) }
    }
}

pub type Result<T> = std::result::Result<T, Failure>;

/// Prints a report and returns its error, if any, as the error of the command.
pub fn tell(report: Report, out: &mut dyn Write) -> Result<()> {
    out.write_all(report.out.as_bytes())?;
    out.flush()?;
    report.error.map_or(Ok(()), |error| Err(Failure::Message(error)))
}
