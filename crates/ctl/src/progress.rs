//! Shows the progress of long operations: a line on the terminal that is redrawn, and removed at the end.
//! Prints nothing if standard error is not a terminal.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Minimum number of steps for which progress is shown.
const MIN_SHOWN_STEPS: usize = 50;
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);
/// Moves the cursor to the start of the line and clears the line.
const CLEAR_LINE: &str = "\r\x1b[K";

pub struct ProgressLine<'o> {
    /// The operation: `Applying`, `Importing addresses`.
    what: &'static str,
    total: usize,
    done: usize,
    drawn: Option<Instant>,
    /// `None` if standard error is not a terminal or the operation is short.
    out: Option<Box<dyn Write + 'o>>,
}

impl ProgressLine<'_> {
    /// Creates the progress of many small steps.
    pub fn new(what: &'static str, total: usize) -> ProgressLine<'static> {
        ProgressLine::shown(what, total, total >= MIN_SHOWN_STEPS)
    }

    /// Creates the progress of a few large steps, which is always worth showing.
    pub fn always(what: &'static str, total: usize) -> ProgressLine<'static> {
        ProgressLine::shown(what, total, true)
    }

    fn shown(what: &'static str, total: usize, worth: bool) -> ProgressLine<'static> {
        let stderr = std::io::stderr();
        let shown = worth && stderr.is_terminal();
        ProgressLine {
            what,
            total,
            done: 0,
            drawn: None,
            out: shown.then(|| Box::new(stderr) as Box<dyn Write>),
        }
    }

    /// Counts one more completed step and redraws the line.
    pub fn step(&mut self) {
        self.done += 1;
        let Some(out) = &mut self.out else { return };
        if self.drawn.is_some_and(|drawn| drawn.elapsed() < REDRAW_INTERVAL) {
            return;
        }
        let percent = self.done * 100 / self.total.max(1);
        // Ignore write errors: the terminal may have been closed.
        let _ = write!(out, "{CLEAR_LINE}{}: {} of {} ({percent} %)", self.what, self.done, self.total);
        let _ = out.flush();
        self.drawn = Some(Instant::now());
    }
}

impl Drop for ProgressLine<'_> {
    fn drop(&mut self) {
        if let (Some(out), Some(_)) = (&mut self.out, self.drawn) {
            let _ = write!(out, "{CLEAR_LINE}");
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
        let mut progress = ProgressLine {
            what: "Applying",
            total: 200,
            done: 1,
            drawn: None,
            out: Some(Box::new(&mut drawn)),
        };
        progress.step();
        // Not redrawn within the redraw interval.
        progress.step();
        drop(progress);
        assert_eq!(String::from_utf8(drawn).unwrap(), "\r\x1b[KApplying: 2 of 200 (1 %)\r\x1b[K");
    }

    #[test]
    fn short_operations_draw_nothing() {
        assert!(ProgressLine::new("Applying", MIN_SHOWN_STEPS - 1).out.is_none());
        let mut drawn = Vec::new();
        drop(ProgressLine {
            what: "Applying",
            total: 200,
            done: 0,
            drawn: None,
            out: Some(Box::new(&mut drawn)),
        });
        assert_eq!(drawn, b"");
    }
}
