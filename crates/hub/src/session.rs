//! Determines what one client still has to receive. A session has no queue: it holds a position in the log, or the
//! list of buckets left to send. Does no I/O.

use crate::ledger::{Bucket, Ledger};
use crate::protocol::{
    BUCKETS, Begin, End, Hello, MAGIC, ProtocolError, Sum, Welcome, common_version, from_hub,
};
use bytes::Bytes;
use std::sync::Arc;

/// Maximum number of bytes of frames returned at once; the hub holds no more for a client that does not read.
pub const BUDGET: usize = 256 << 10;

#[derive(Clone, Debug)]
pub struct Session {
    phase: Phase,
}

#[derive(Clone, Debug, PartialEq)]
enum Phase {
    /// Waiting for the client's digests.
    Comparing,
    /// Buckets that differ, the next one last. Changes made while they are sent follow from sequence number `from`.
    Sending {
        left: Vec<usize>,
        from: u64,
    },
    Following {
        sequence: u64,
    },
}

/// Next step for a client.
#[derive(Debug)]
pub enum Next {
    /// Wait until the ledger changes.
    Wait,
    /// Wait until the client has sent its digests.
    AwaitDigests,
    Send(Vec<Bytes>),
    SendBucket(Arc<Bucket>),
}

/// Response to a hello.
#[derive(Debug)]
pub enum Opening {
    Served {
        session: Session,
        first: Vec<Bytes>,
    },
    /// The client has seen newer revisions than the hub: it has to wait.
    Behind,
    Refused(String),
}

impl Session {
    /// Opens a session. With `trusting`, the hub sends its state although the client has seen newer revisions,
    /// because the store may have been restored from a backup.
    pub fn open(hello: &Hello, ledger: &Ledger, trusting: bool) -> Opening {
        if hello.magic != MAGIC {
            return Opening::Refused("this is a hub; the client sent another protocol".to_owned());
        }
        let Some(version) = common_version(hello.oldest, hello.newest) else {
            let (oldest, newest) = (hello.oldest, hello.newest);
            return Opening::Refused(format!(
                "the client supports protocol versions {oldest} to {newest}, this hub {} to {}",
                crate::protocol::OLDEST,
                crate::protocol::NEWEST
            ));
        };
        if let Some(class) = ledger.missing_class(&hello.wanted) {
            return Opening::Refused(format!("this hub does not follow {class}; update it before its nodes"));
        }
        if !ledger.is_in_sync() {
            return Opening::Refused("this hub has not read the datastore completely yet".to_owned());
        }
        let behind = ledger.is_behind(&hello.marks);
        let welcome = Welcome { version, epoch: ledger.epoch(), behind };
        let mut first = vec![from_hub::What::Welcome(welcome).frame()];
        let known = hello.position.filter(|position| position.epoch == ledger.epoch());
        let phase = match known {
            Some(position) if ledger.after(position.sequence, 0).is_some() => {
                first.push(from_hub::What::Resume(ledger.status().clone()).frame());
                Phase::Following { sequence: position.sequence }
            }
            _ if behind && !trusting => return Opening::Behind,
            _ if hello.empty => {
                let (phase, begin) = Phase::sending(ledger, &[Sum::default(); BUCKETS]);
                first.push(begin);
                phase
            }
            _ => {
                first.push(from_hub::What::Compare(()).frame());
                Phase::Comparing
            }
        };
        Opening::Served { session: Session { phase }, first }
    }

    /// Handles the client's response to Compare.
    pub fn compare(&mut self, sums: &[Sum], ledger: &Ledger) -> Result<Bytes, ProtocolError> {
        if self.phase != Phase::Comparing {
            return Err(ProtocolError::Unexpected("digests without a preceding Compare"));
        }
        let (phase, begin) = Phase::sending(ledger, sums);
        self.phase = phase;
        Ok(begin)
    }

    /// Returns the next step. Its frames must be sent before the next call.
    pub fn next(&mut self, ledger: &Ledger) -> Next {
        match &mut self.phase {
            Phase::Comparing => Next::AwaitDigests,
            Phase::Sending { left, from } => match left.pop().and_then(|index| ledger.bucket(index)) {
                Some(bucket) => Next::SendBucket(bucket.clone()),
                None => {
                    self.phase = Phase::Following { sequence: *from };
                    Next::Send(vec![from_hub::What::End(End { marks: ledger.marks().clone() }).frame()])
                }
            },
            Phase::Following { sequence } => match ledger.after(*sequence, BUDGET) {
                Some(frames) if frames.is_empty() => Next::Wait,
                Some(frames) => {
                    *sequence += frames.len() as u64;
                    Next::Send(frames)
                }
                None => {
                    self.phase = Phase::Comparing;
                    Next::Send(vec![from_hub::What::Compare(()).frame()])
                }
            },
        }
    }

    /// Returns whether the client receives changes as they happen.
    pub fn is_following(&self) -> bool {
        matches!(self.phase, Phase::Following { .. })
    }
}

impl Phase {
    fn sending(ledger: &Ledger, sums: &[Sum]) -> (Phase, Bytes) {
        let mut left = ledger.differing(sums);
        left.reverse();
        let from = ledger.sequence();
        let status = Some(ledger.status().clone());
        (Phase::Sending { left, from }, from_hub::What::Begin(Begin { sequence: from, status }).frame())
    }
}
