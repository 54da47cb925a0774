//! How far long work is: a line on the terminal that is drawn over and over, and gone at the end. In a pipe, nothing.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Less than this is over before anybody wonders.
const WORTH_SHOWING: usize = 50;
const REDRAW: Duration = Duration::from_millis(100);
/// Back to the start of the line, and the line is empty.
const CLEAR: &str = "\r\x1b[K";

pub struct Progress<'o> {
    /// `Applying`, `Importing addresses`.
    what: &'static str,
    total: usize,
    done: usize,
    drawn: Option<Instant>,
    /// None where nobody looks.
    out: Option<Box<dyn Write + 'o>>,
}

impl Progress<'_> {
    /// Of many small steps, on standard error, if that is a terminal.
    pub fn new(what: &'static str, total: usize) -> Progress<'static> {
        Progress::shown(what, total, total >= WORTH_SHOWING)
    }

    /// Of a few large steps.
    pub fn of_parts(what: &'static str, total: usize) -> Progress<'static> {
        Progress::shown(what, total, true)
    }

    fn shown(what: &'static str, total: usize, worth: bool) -> Progress<'static> {
        let stderr = std::io::stderr();
        let shown = worth && stderr.is_terminal();
        Progress { what, total, done: 0, drawn: None, out: shown.then(|| Box::new(stderr) as Box<dyn Write>) }
    }

    /// One more is done.
    pub fn step(&mut self) {
        self.done += 1;
        let Some(out) = &mut self.out else { return };
        if self.drawn.is_some_and(|drawn| drawn.elapsed() < REDRAW) {
            return;
        }
        let percent = self.done * 100 / self.total.max(1);
        // A terminal that is gone reads nothing.
        let _ = write!(out, "{CLEAR}{}: {} of {} ({percent} %)", self.what, self.done, self.total);
        let _ = out.flush();
        self.drawn = Some(Instant::now());
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        if let (Some(out), Some(_)) = (&mut self.out, self.drawn) {
            let _ = write!(out, "{CLEAR}");
            let _ = out.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_drawn_and_removed() {
        let mut drawn = Vec::new();
        let mut progress =
            Progress { what: "Applying", total: 200, done: 1, drawn: None, out: Some(Box::new(&mut drawn)) };
        progress.step();
        // Not again so soon.
        progress.step();
        drop(progress);
        assert_eq!(String::from_utf8(drawn).unwrap(), "\r\x1b[KApplying: 2 of 200 (1 %)\r\x1b[K");
    }

    #[test]
    fn what_is_short_or_seen_by_nobody_is_not_drawn() {
        assert!(Progress::new("Applying", WORTH_SHOWING - 1).out.is_none());
        let mut drawn = Vec::new();
        drop(Progress {
            what: "Applying",
            total: 200,
            done: 0,
            drawn: None,
            out: Some(Box::new(&mut drawn)),
        });
        assert_eq!(drawn, b"");
    }
}
