//! Records which destinations changed, in the order of their latest change, for any number of independent readers.
//!
//! A reader keeps only a position. A destination that changes again counts only at its new position, so the journal
//! stays within about twice the number of destinations however slow a reader is.

use crate::id::DestinationId;
use std::collections::VecDeque;

/// Capacity that is never released.
const MIN_CAPACITY: usize = 4096;

/// A position in a journal: every entry before it has been read.
pub type JournalPosition = u64;

#[derive(Debug)]
pub struct ChangeJournal {
    /// Sorted by position.
    entries: VecDeque<(JournalPosition, DestinationId)>,
    next: JournalPosition,
    /// Every entry before this position has been read by all readers.
    done: JournalPosition,
}

impl Default for ChangeJournal {
    fn default() -> Self {
        // A mark of 0 means "never recorded".
        ChangeJournal { entries: VecDeque::new(), next: 1, done: 1 }
    }
}

impl ChangeJournal {
    /// Returns the position of a reader that needs only future changes.
    pub fn end(&self) -> JournalPosition {
        self.next
    }

    /// Records a change and returns the mark to store with the destination.
    pub fn record(&mut self, id: DestinationId) -> JournalPosition {
        let position = self.next;
        self.next += 1;
        self.entries.push_back((position, id));
        position
    }

    /// Returns whether some reader may not have read the change with this mark.
    pub fn holds(&self, mark: JournalPosition) -> bool {
        mark >= self.done
    }

    /// Appends up to `limit` changed destinations to `out` and moves the reader past them.
    pub fn read(
        &self,
        from: &mut JournalPosition,
        limit: usize,
        mark: impl Fn(DestinationId) -> JournalPosition,
        out: &mut Vec<DestinationId>,
    ) {
        let start = self.entries.partition_point(|(position, _)| position < from);
        let wanted = out.len() + limit;
        for (position, id) in self.entries.iter().skip(start) {
            if out.len() >= wanted {
                *from = *position;
                return;
            }
            if mark(*id) == *position {
                out.push(*id);
            }
        }
        *from = self.next;
    }

    /// Removes the entries that every reader has read, and calls `read` for each destination whose latest change was
    /// among them.
    pub fn trim(
        &mut self,
        slowest: JournalPosition,
        mark: impl Fn(DestinationId) -> JournalPosition,
        mut read: impl FnMut(DestinationId),
    ) {
        self.done = slowest.min(self.next);
        while let Some((position, id)) = self.entries.front().copied() {
            if position >= self.done {
                break;
            }
            self.entries.pop_front();
            if mark(id) == position {
                read(id);
            }
        }
        // Release the memory of a burst.
        if self.entries.capacity() > MIN_CAPACITY && self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to((self.entries.len() * 2).max(MIN_CAPACITY));
        }
    }

    /// Removes the entries that a later one has replaced, once they are in the majority.
    pub fn compact(&mut self, destinations: usize, mark: impl Fn(DestinationId) -> JournalPosition) {
        if self.entries.len() > 2 * destinations + 1024 {
            self.entries.retain(|(position, id)| mark(*id) == *position);
        }
    }
}
