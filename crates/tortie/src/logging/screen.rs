//! Standard error as a log target. Lines that cannot be written are dropped and counted: a full disk or a closed pipe
//! must not end the daemon.

use super::sink::printable_line;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tortie_node::LogCounters;
use tracing_subscriber::fmt::MakeWriter;

pub struct StderrLog {
    counters: Arc<LogCounters>,
    has_colours: bool,
    /// Number of lines dropped since the last successful write.
    lost: AtomicU64,
}

impl StderrLog {
    pub fn new(counters: Arc<LogCounters>, has_colours: bool) -> StderrLog {
        StderrLog { counters, has_colours, lost: AtomicU64::new(0) }
    }

    fn write_line(&self, text: &[u8], to: &mut impl Write) {
        let lost = self.lost.load(Ordering::Relaxed);
        let note = match lost {
            0 => String::new(),
            _ => format!("{lost} lines of the log were dropped: standard error could not be written\n"),
        };
        let line = printable_line(text, self.has_colours);
        if to.write_all(&[note.as_bytes(), &line].concat()).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
            self.counters.errors.fetch_add(1, Ordering::Relaxed);
        } else {
            self.lost.fetch_sub(lost, Ordering::Relaxed);
        }
    }
}

/// Writes a single log line.
pub struct StderrWriter<'a>(&'a StderrLog);

impl Write for StderrWriter<'_> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.write_line(text, &mut io::stderr().lock());
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for StderrLog {
    type Writer = StderrWriter<'a>;

    fn make_writer(&'a self) -> StderrWriter<'a> {
        StderrWriter(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Accepts bytes up to a limit.
    struct LimitedWriter(Vec<u8>, usize);

    impl Write for LimitedWriter {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            if self.0.len() + text.len() > self.1 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.0.extend_from_slice(text);
            Ok(text.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_lost_on_a_full_disk_are_reported() {
        let counters = Arc::new(LogCounters::default());
        let screen = StderrLog::new(counters.clone(), false);
        let mut disk = LimitedWriter(Vec::new(), 6);
        for line in ["first\n", "second\n", "third\n"] {
            screen.write_line(line.as_bytes(), &mut disk);
        }
        assert_eq!(counters.errors.load(Ordering::Relaxed), 2);
        disk.1 = 1000;
        screen.write_line(b"fourth\n", &mut disk);
        screen.write_line(b"fifth\n", &mut disk);
        assert_eq!(
            String::from_utf8(disk.0).unwrap(),
            "first\n2 lines of the log were dropped: standard error could not be written\nfourth\nfifth\n"
        );
    }
}
