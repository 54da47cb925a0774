//! Determines what one client still has to receive. A session has no queue: it holds a position in the log, or the
//! list of buckets left to send. Does no I/O.

use crate::ledger::{HubLedger, LedgerBucket};
use crate::protocol::{
    BUCKET_COUNT, BeginMessage, DigestSum, EndMessage, HelloMessage, HubMessage, NEWEST_PROTOCOL_VERSION,
    OLDEST_PROTOCOL_VERSION, PROTOCOL_MAGIC, ProtocolError, WelcomeMessage, choose_version,
};
use bytes::Bytes;
use std::sync::Arc;

/// Maximum number of bytes of frames returned at once; the hub holds no more for a client that does not read.
pub const MAX_SEND_BYTES: usize = 256 << 10;

#[derive(Clone, Debug)]
pub struct ClientSession {
    phase: SessionPhase,
}

#[derive(Clone, Debug, PartialEq)]
enum SessionPhase {
    /// Waiting for the client's digests.
    Comparing,
    /// Buckets that differ, the next one last. Changes with a higher number than `sequence` are sent
    /// after them.
    Sending {
        remaining: Vec<usize>,
        sequence: u64,
    },
    Following {
        sequence: u64,
    },
}

/// Next step for a client.
#[derive(Debug)]
pub enum SessionStep {
    /// Wait until the ledger changes.
    Wait,
    /// Wait until the client has sent its digests.
    AwaitDigests,
    Send(Vec<Bytes>),
    SendBucket(Arc<LedgerBucket>),
}

/// Response to the hello of a client.
#[derive(Debug)]
pub enum SessionOpening {
    Served {
        session: ClientSession,
        /// Frames to send first.
        first: Vec<Bytes>,
    },
    /// The client has seen newer revisions than the hub: it has to wait.
    Behind,
    /// The hub closes the connection for this reason.
    Refused(String),
}

impl ClientSession {
    /// Opens a session. With `allow_older`, the hub sends its state even if the client has seen newer revisions,
    /// because the store may have been restored from a backup.
    pub fn open(hello: &HelloMessage, ledger: &HubLedger, allow_older: bool) -> SessionOpening {
        if hello.magic != PROTOCOL_MAGIC {
            return SessionOpening::Refused(
                "this port serves the hub protocol; the client sent another protocol".to_owned(),
            );
        }
        let Some(version) = choose_version(hello.oldest, hello.newest) else {
            return SessionOpening::Refused(format!(
                "the client supports protocol versions {} to {}, this hub {OLDEST_PROTOCOL_VERSION} to {NEWEST_PROTOCOL_VERSION}",
                hello.oldest, hello.newest
            ));
        };
        if let Some(class) = ledger.missing_class(&hello.wanted) {
            return SessionOpening::Refused(format!(
                "this hub does not watch {class}; upgrade the hub before its nodes"
            ));
        }
        if !ledger.is_in_sync() {
            return SessionOpening::Refused("this hub has not read the datastore completely yet".to_owned());
        }
        let behind = ledger.is_behind(&hello.marks);
        let welcome = WelcomeMessage { version, epoch: ledger.epoch(), behind };
        let mut first = vec![HubMessage::Welcome(welcome).frame()];
        let known_position = hello.position.filter(|position| position.epoch == ledger.epoch());
        let phase = match known_position {
            Some(position) if ledger.frames_after(position.sequence, 0).is_some() => {
                first.push(HubMessage::Resume(ledger.status().clone()).frame());
                SessionPhase::Following { sequence: position.sequence }
            }
            _ if behind && !allow_older => return SessionOpening::Behind,
            _ if hello.empty => {
                let nothing = [DigestSum::default(); BUCKET_COUNT];
                let (phase, begin) = SessionPhase::start_sending(ledger, &nothing);
                first.push(begin);
                phase
            }
            _ => {
                first.push(HubMessage::Compare(()).frame());
                SessionPhase::Comparing
            }
        };
        SessionOpening::Served { session: ClientSession { phase }, first }
    }

    /// Handles the client's response to Compare.
    pub fn compare(&mut self, sums: &[DigestSum], ledger: &HubLedger) -> Result<Bytes, ProtocolError> {
        if self.phase != SessionPhase::Comparing {
            return Err(ProtocolError::Unexpected("digests without a preceding Compare"));
        }
        let (phase, begin) = SessionPhase::start_sending(ledger, sums);
        self.phase = phase;
        Ok(begin)
    }

    /// Returns the next step. Its frames must be sent before the next call.
    pub fn next(&mut self, ledger: &HubLedger) -> SessionStep {
        match &mut self.phase {
            SessionPhase::Comparing => SessionStep::AwaitDigests,
            SessionPhase::Sending { remaining, sequence } => {
                match remaining.pop().and_then(|index| ledger.bucket(index)) {
                    Some(bucket) => SessionStep::SendBucket(bucket.clone()),
                    None => {
                        self.phase = SessionPhase::Following { sequence: *sequence };
                        SessionStep::Send(vec![
                            HubMessage::End(EndMessage { marks: ledger.content_marks().clone() }).frame(),
                        ])
                    }
                }
            }
            SessionPhase::Following { sequence } => match ledger.frames_after(*sequence, MAX_SEND_BYTES) {
                Some(frames) if frames.is_empty() => SessionStep::Wait,
                Some(frames) => {
                    *sequence += frames.len() as u64;
                    SessionStep::Send(frames)
                }
                None => {
                    self.phase = SessionPhase::Comparing;
                    SessionStep::Send(vec![HubMessage::Compare(()).frame()])
                }
            },
        }
    }

    /// Returns whether the client receives changes as they happen.
    pub fn is_following(&self) -> bool {
        matches!(self.phase, SessionPhase::Following { .. })
    }
}

impl SessionPhase {
    fn start_sending(ledger: &HubLedger, sums: &[DigestSum]) -> (SessionPhase, Bytes) {
        let mut remaining = ledger.differing_buckets(sums);
        remaining.reverse();
        let sequence = ledger.sequence();
        let status = Some(ledger.status().clone());
        (
            SessionPhase::Sending { remaining, sequence },
            HubMessage::Begin(BeginMessage { sequence, status }).frame(),
        )
    }
}
