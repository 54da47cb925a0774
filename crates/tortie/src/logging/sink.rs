//! A log target that does not block its callers: a thread writes lines from a bounded queue. Lines are dropped and
//! counted when the queue is full, unless the settings ask to wait instead.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use tortie_node::LogCounters;
use tortie_store::printable::escape_controls;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

const MAX_QUEUED_LINES: usize = 4096;

pub trait LogTarget: Send + 'static {
    fn write(&mut self, level: Level, line: &[u8]) -> io::Result<()>;
}

struct LogLine {
    level: Level,
    text: Vec<u8>,
}

#[derive(Clone)]
pub struct LogSink {
    /// `None` while no target is open; lines are then discarded.
    queue: Arc<Mutex<Option<SyncSender<LogLine>>>>,
    keeps_all: Arc<AtomicBool>,
    counters: Arc<LogCounters>,
}

impl LogSink {
    pub fn new(counters: Arc<LogCounters>) -> LogSink {
        LogSink { queue: Arc::default(), keeps_all: Arc::default(), counters }
    }

    /// Sets whether callers wait for space in the queue instead of dropping lines.
    pub fn keep_all(&self, keeps_all: bool) {
        self.keeps_all.store(keeps_all, Ordering::Relaxed);
    }

    /// Opens a target and starts its thread. Lines queued for the previous target are still written there.
    pub fn open(&self, thread: &str, target: impl LogTarget) -> io::Result<()> {
        let (sender, receiver) = sync_channel(MAX_QUEUED_LINES);
        let counters = self.counters.clone();
        std::thread::Builder::new()
            .name(thread.to_owned())
            .spawn(move || write_all(&receiver, target, &counters))?;
        *self.queue.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        Ok(())
    }

    pub fn close(&self) {
        *self.queue.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn send(&self, line: LogLine) {
        // Do not hold the lock while waiting, so that the queue can be closed in the meantime.
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(queue) = queue else { return };
        match queue.try_send(line) {
            // A send error means that the target was closed: discard the line.
            Err(TrySendError::Full(line)) if self.keeps_all.load(Ordering::Relaxed) => {
                let _ = queue.send(line);
            }
            Err(TrySendError::Full(_)) => {
                self.counters.dropped.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

fn write_all(lines: &Receiver<LogLine>, mut target: impl LogTarget, counters: &LogCounters) {
    for line in lines {
        if target.write(line.level, &line.text).is_err() {
            counters.errors.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Escapes the control characters of a log line, except the final newline and, if colours are enabled, the escape
/// character of colour codes. Escape characters in logged values are already escaped by the formatting layer.
pub fn printable_line(text: &[u8], has_colours: bool) -> Vec<u8> {
    const ESCAPE: &str = "\x1b";
    let text = String::from_utf8_lossy(text);
    let (line, end) = text.strip_suffix('\n').map_or((&*text, ""), |line| (line, "\n"));
    let escaped = if has_colours {
        line.split(ESCAPE).map(escape_controls).collect::<Vec<_>>().join(ESCAPE)
    } else {
        escape_controls(line).into_owned()
    };
    (escaped + end).into_bytes()
}

/// Writes a single log line.
pub struct LineWriter<'a> {
    sink: &'a LogSink,
    level: Level,
}

impl Write for LineWriter<'_> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.sink.send(LogLine { level: self.level, text: printable_line(text, false) });
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogSink {
    type Writer = LineWriter<'a>;

    fn make_writer(&'a self) -> LineWriter<'a> {
        LineWriter { sink: self, level: Level::INFO }
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> LineWriter<'a> {
        LineWriter { sink: self, level: *meta.level() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};

    /// A target that reports each line and then blocks until the test continues it.
    struct BlockingTarget {
        written: Sender<Vec<u8>>,
        go_on: Receiver<()>,
    }

    impl LogTarget for BlockingTarget {
        fn write(&mut self, _: Level, line: &[u8]) -> io::Result<()> {
            self.written.send(line.to_vec()).map_err(io::Error::other)?;
            self.go_on.recv().map_err(io::Error::other)
        }
    }

    #[test]
    fn a_slow_disk_drops_lines_without_blocking() {
        let counters = Arc::new(LogCounters::default());
        let sink = LogSink::new(counters.clone());
        let (written, lines) = channel();
        let (go, go_on) = channel();
        sink.open("slow", BlockingTarget { written, go_on }).unwrap();
        sink.make_writer().write_all(b"first").unwrap();
        assert_eq!(lines.recv().unwrap(), b"first");
        for _ in 0..MAX_QUEUED_LINES + 3 {
            sink.make_writer().write_all(b"more").unwrap();
        }
        assert_eq!(counters.dropped.load(Ordering::Relaxed), 3);
        sink.close();
        drop(go);
        assert_eq!(lines.iter().count(), MAX_QUEUED_LINES);
        // Including the first line: its write fails because the channel is closed.
        assert_eq!(counters.errors.load(Ordering::Relaxed), 1 + MAX_QUEUED_LINES as u64);
    }

    #[test]
    fn a_line_of_the_log_stays_one_line() {
        let line = |text: &str, colours| String::from_utf8(printable_line(text.as_bytes(), colours)).unwrap();
        assert_eq!(line("a\x1b[2J\nERROR fake\n", false), "a\\u001b[2J\\nERROR fake\n");
        assert_eq!(line("\x1b[32mINFO\x1b[0m a\rb\n", true), "\x1b[32mINFO\x1b[0m a\\u000db\n");
    }

    #[test]
    fn who_would_rather_wait_loses_nothing() {
        let counters = Arc::new(LogCounters::default());
        let sink = LogSink::new(counters.clone());
        sink.keep_all(true);
        let (written, lines) = channel();
        let (go, go_on) = channel();
        sink.open("slow", BlockingTarget { written, go_on }).unwrap();
        let all = MAX_QUEUED_LINES + 10;
        let logging = std::thread::spawn(move || {
            for _ in 0..all {
                sink.make_writer().write_all(b"line").unwrap();
            }
            sink.close();
        });
        // The target has accepted one line, the queue is full, and the writer waits.
        for _ in 0..all {
            lines.recv().unwrap();
            go.send(()).unwrap();
        }
        logging.join().unwrap();
        assert_eq!(counters.dropped.load(Ordering::Relaxed), 0);
    }
}
