//! Reads a recording line by line.

use super::{RECORDING_VERSION, RecordingHeader};
use serde_json::Value as Json;
use std::io::{self, BufRead};
use std::time::Duration;

/// Maximum length of a line in bytes. Entries of the store are smaller.
const MAX_LINE_BYTES: u64 = 64 << 20;

#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    #[error("line {line}: {error}")]
    Io { line: u64, error: io::Error },
    #[error("line {line} is not one of a recording: {reason}")]
    Line { line: u64, reason: String },
    #[error("this recording has format {0}; this version reads format {RECORDING_VERSION}")]
    Version(u32),
}

/// One event of a recording.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedLine {
    /// Line number in the file, starting at 1.
    pub number: u64,
    pub at: Duration,
    pub event: Json,
}

#[derive(Debug)]
pub struct RecordingReader<R> {
    input: R,
    line: u64,
}

impl<R: BufRead> RecordingReader<R> {
    pub fn new(input: R) -> Result<(RecordingHeader, RecordingReader<R>), RecordingError> {
        let mut reader = RecordingReader { input, line: 0 };
        let text = reader.text()?.unwrap_or_default();
        let header: RecordingHeader = serde_json::from_str(&text).map_err(|error| reader.wrong(&error))?;
        match header.version {
            RECORDING_VERSION => Ok((header, reader)),
            other => Err(RecordingError::Version(other)),
        }
    }

    fn wrong(&self, reason: &dyn std::fmt::Display) -> RecordingError {
        RecordingError::Line { line: self.line, reason: reason.to_string() }
    }

    fn text(&mut self) -> Result<Option<String>, RecordingError> {
        self.line += 1;
        let mut text = String::new();
        let read = io::Read::take(&mut self.input, MAX_LINE_BYTES).read_line(&mut text);
        let read = read.map_err(|error| RecordingError::Io { line: self.line, error })?;
        if read as u64 == MAX_LINE_BYTES {
            return Err(self.wrong(&"it is too long"));
        }
        Ok((read > 0).then_some(text))
    }

    /// Returns the next event, or None at the end. An incomplete last line, left by a node that was killed, also
    /// counts as the end.
    pub fn next_line(&mut self) -> Result<Option<RecordedLine>, RecordingError> {
        let Some(text) = self.text()? else { return Ok(None) };
        if !text.ends_with('\n') {
            return Ok(None);
        }
        let mut line: Json = serde_json::from_str(&text).map_err(|error| self.wrong(&error))?;
        let at = line.get("at").and_then(Json::as_u64).ok_or_else(|| self.wrong(&"it has no time"))?;
        let event = line.get_mut("event").map(Json::take).ok_or_else(|| self.wrong(&"it has no event"))?;
        Ok(Some(RecordedLine { number: self.line, at: Duration::from_micros(at), event }))
    }
}
