//! Which destinations changed, in the order of their latest change, for any number of readers at any distance.
//!
//! Every reader keeps only a position. A destination that changed again counts at its new position alone, so
//! however slow the slowest reader, the journal stays within twice the number of destinations.

use crate::id::DestinationId;
use std::collections::VecDeque;

/// Room that is kept however little is in it.
const SPARE: usize = 4096;

/// A place in a journal: everything before it has been read.
pub type Position = u64;

#[derive(Debug)]
pub struct Journal {
    /// Positions ascend.
    entries: VecDeque<(Position, DestinationId)>,
    next: Position,
    /// Everything before has been read by all.
    done: Position,
}

impl Default for Journal {
    fn default() -> Self {
        // A mark of 0 says "never recorded".
        Journal { entries: VecDeque::new(), next: 1, done: 1 }
    }
}

impl Journal {
    /// Where a reader begins that wants only what is still to come.
    pub fn end(&self) -> Position {
        self.next
    }

    /// Notes a change and returns the mark to keep with the destination.
    pub fn record(&mut self, id: DestinationId) -> Position {
        let position = self.next;
        self.next += 1;
        self.entries.push_back((position, id));
        position
    }

    /// Whether a change with this mark may still be unread by somebody.
    pub fn holds(&self, mark: Position) -> bool {
        mark >= self.done
    }

    /// Appends up to `limit` changed destinations to `out` and moves the reader past them.
    pub fn read(
        &self,
        from: &mut Position,
        limit: usize,
        mark: impl Fn(DestinationId) -> Position,
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

    /// Forgets what every reader has read; tells the destinations whose latest change that was.
    pub fn trim(
        &mut self,
        slowest: Position,
        mark: impl Fn(DestinationId) -> Position,
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
        // A burst must not hold memory for ever.
        if self.entries.capacity() > SPARE && self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to((self.entries.len() * 2).max(SPARE));
        }
    }

    /// Drops entries that a later one has replaced, once they are the larger part.
    pub fn compact(&mut self, destinations: usize, mark: impl Fn(DestinationId) -> Position) {
        if self.entries.len() > 2 * destinations + 1024 {
            self.entries.retain(|(position, id)| mark(*id) == *position);
        }
    }
}
