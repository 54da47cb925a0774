//! What one client still has to get. It has no queue: it knows a place in the log, or the buckets that are left to send.

use crate::ledger::{Bucket, Ledger};
use crate::protocol::{
    BUCKETS, Begin, End, Hello, MAGIC, ProtocolError, Sum, Welcome, common_version, from_hub,
};
use bytes::Bytes;
use std::sync::Arc;

/// Frames that are handed out together, in bytes; the most that the hub holds for a client that does not read.
pub const BUDGET: usize = 256 << 10;

#[derive(Clone, Debug)]
pub struct Session {
    phase: Phase,
}

#[derive(Clone, Debug, PartialEq)]
enum Phase {
    /// The client has been asked for its digests.
    Comparing,
    /// Buckets that differ, the next one last; what changes meanwhile follows from the sequence number.
    Sending {
        left: Vec<usize>,
        from: u64,
    },
    Following {
        sequence: u64,
    },
}

/// What to do next for a client.
#[derive(Debug)]
pub enum Next {
    /// Nothing until the ledger changes.
    Wait,
    /// Nothing until the client has sent its digests.
    AwaitDigests,
    Send(Vec<Bytes>),
    SendBucket(Arc<Bucket>),
}

/// How a hello is answered.
#[derive(Debug)]
pub enum Opening {
    Served {
        session: Session,
        first: Vec<Bytes>,
    },
    /// The client knows more than the hub: it has to wait.
    Behind,
    Refused(String),
}

impl Session {
    /// `trusting`: the hub is taken at its word although the client has heard more, because that may be the past of a store
    /// that was put back.
    pub fn open(hello: &Hello, ledger: &Ledger, trusting: bool) -> Opening {
        if hello.magic != MAGIC {
            return Opening::Refused("this is a hub; what was sent is not its protocol".to_owned());
        }
        let Some(version) = common_version(hello.oldest, hello.newest) else {
            let (oldest, newest) = (hello.oldest, hello.newest);
            return Opening::Refused(format!(
                "the client speaks versions {oldest} to {newest}, this hub {} to {}",
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

    /// The client has answered to Compare.
    pub fn compare(&mut self, sums: &[Sum], ledger: &Ledger) -> Result<Bytes, ProtocolError> {
        if self.phase != Phase::Comparing {
            return Err(ProtocolError::Unexpected("digests that nobody asked for"));
        }
        let (phase, begin) = Phase::sending(ledger, sums);
        self.phase = phase;
        Ok(begin)
    }

    /// Whatever it returns has to be sent before it is asked again.
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

    /// Whether it gets changes as they happen.
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
