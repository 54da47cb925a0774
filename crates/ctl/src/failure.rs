//! Errors of commands, with the messages for standard error.

use crate::input::InputError;
use crate::outcome::BatchReport;
use std::io::{self, Write};

#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("{0}")]
    Message(String),
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
    pub fn message(text: impl Into<String>) -> CommandError {
        CommandError::Message(text.into())
    }

    /// Creates a failure for an I/O error on a file, directory or socket. The message advises how to get
    /// missing permissions.
    pub fn at(path: &std::path::Path, error: &io::Error) -> CommandError {
        let advice = match error.kind() {
            io::ErrorKind::PermissionDenied => "; run as root",
            _ => "",
        };
        CommandError::Message(format!("{}: {error}{advice}", path.display()))
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
pub fn tell(report: BatchReport, out: &mut dyn Write) -> CommandResult<()> {
    out.write_all(report.out.as_bytes())?;
    out.flush()?;
    report.error.map_or(Ok(()), |error| Err(CommandError::Message(error)))
}
