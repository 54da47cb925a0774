//! Writes a recording, up to a maximum size.

use super::RecordingHeader;
use serde_json::{Value as Json, json};
use std::io::{self, Write};
use std::time::Duration;

/// Writes a recording until its size limit or until the first write error. Logs the end once and counts the events
/// after it.
#[derive(Debug)]
pub struct RecordingWriter<W> {
    out: W,
    /// Number of bytes that may still be written; None once the recording has ended.
    left: Option<u64>,
    lost: u64,
}

impl<W: Write> RecordingWriter<W> {
    pub fn new(mut out: W, limit: u64, header: &RecordingHeader) -> io::Result<RecordingWriter<W>> {
        let line = serde_json::to_string(header).map_err(io::Error::other)? + "\n";
        out.write_all(line.as_bytes())?;
        Ok(RecordingWriter { out, left: Some(limit.saturating_sub(line.len() as u64)), lost: 0 })
    }

    /// Returns the number of events that are missing because the recording had ended.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Writes an event. Returns whether the event is in the recording.
    pub fn record(&mut self, at: Duration, event: &Json) -> bool {
        let Some(left) = self.left else {
            self.lost += 1;
            return false;
        };
        let at = u64::try_from(at.as_micros()).unwrap_or(u64::MAX);
        let line = json!({ "at": at, "event": event }).to_string() + "\n";
        let Some(rest) = left.checked_sub(line.len() as u64) else {
            return self
                .end("it has reached its size limit; record again with a larger one if the rest is needed");
        };
        match self.out.write_all(line.as_bytes()) {
            Ok(()) => {
                self.left = Some(rest);
                true
            }
            Err(error) => self.end(&error.to_string()),
        }
    }

    /// Flushes the output, so that the events recorded so far survive the end of the process.
    pub fn flush(&mut self) {
        if self.left.is_some()
            && let Err(error) = self.out.flush()
        {
            self.end(&error.to_string());
        }
    }

    fn end(&mut self, reason: &str) -> bool {
        tracing::warn!(reason, "the recording has ended; later events are counted, not recorded");
        self.left = None;
        self.lost += 1;
        // The recording has ended, whether or not the flush succeeds.
        let _ = self.out.flush();
        false
    }
}
