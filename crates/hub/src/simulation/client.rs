//! A simulated client, its connection with all frames in flight, and a node that checks the events it receives.

use super::hub::SimulatedHub;
use super::store::{SimulatedHubStore, class_names};
use crate::protocol::{ClientMessage, HelloMessage, HubMessage};
use crate::replica::HubReplica;
use crate::session::{ClientSession, SessionOpening, SessionStep};
use bytes::Bytes;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use std::collections::{BTreeMap, VecDeque};
use tortie_model::{FeedEvent, StoreKey};

pub struct SimulatedClient {
    replica: HubReplica,
    connection: Option<SimulatedConnection>,
    /// Entries that the node has received.
    pub content: BTreeMap<StoreKey, u64>,
    pub in_sync: bool,
    lost: bool,
    /// The latest version of each entry that the node ever had.
    latest: BTreeMap<StoreKey, u64>,
}

struct SimulatedConnection {
    hub: usize,
    epoch: u64,
    /// Hello of a client that waits until the hub has caught up with it.
    waiting: Option<HelloMessage>,
    session: Option<ClientSession>,
    to_client: VecDeque<Bytes>,
    to_hub: VecDeque<Bytes>,
}

/// Strips the length prefix of a frame.
fn body(frame: &Bytes) -> Bytes {
    frame.slice(4..)
}

impl SimulatedClient {
    pub fn new() -> SimulatedClient {
        SimulatedClient {
            replica: HubReplica::new("n", class_names()),
            connection: None,
            content: BTreeMap::new(),
            in_sync: false,
            lost: false,
            latest: BTreeMap::new(),
        }
    }

    pub fn connect(&mut self, hub: usize, hubs: &[SimulatedHub]) {
        self.connection = Some(SimulatedConnection {
            hub,
            epoch: hubs[hub].ledger.epoch(),
            waiting: None,
            session: None,
            to_client: VecDeque::new(),
            to_hub: [self.replica.hello().frame()].into(),
        });
    }

    pub fn disconnect(&mut self) {
        self.connection = None;
    }

    /// Processes one message in either direction. Returns whether there was one.
    pub fn run(&mut self, hubs: &[SimulatedHub], store: &SimulatedHubStore) -> Result<bool, TestCaseError> {
        self.connection.take_if(|connection| hubs[connection.hub].ledger.epoch() != connection.epoch);
        let Some(connection) = &mut self.connection else { return Ok(false) };
        let ledger = &hubs[connection.hub].ledger;
        if let Some(frame) = connection.to_client.pop_front() {
            let reaction = self.replica.receive(HubMessage::decode(body(&frame)).unwrap());
            let reaction = reaction.map_err(|error| TestCaseError::fail(error.to_string()))?;
            connection.to_hub.extend(reaction.reply.map(ClientMessage::frame));
            if reaction.disconnect.is_some() {
                self.connection = None;
            }
            for event in reaction.events {
                self.receive(event, store)?;
            }
            return Ok(true);
        }
        let hello = match connection.to_hub.pop_front() {
            Some(frame) => match ClientMessage::decode(body(&frame)).unwrap() {
                ClientMessage::Hello(hello) => Some(hello),
                ClientMessage::Digests(digests) => {
                    let session = connection.session.as_mut().unwrap();
                    connection
                        .to_client
                        .push_back(session.compare(&digests.sums().unwrap(), ledger).unwrap());
                    return Ok(true);
                }
                ClientMessage::Pong(()) => return Ok(true),
            },
            None => connection.waiting.take(),
        };
        if let Some(hello) = hello {
            match ClientSession::open(&hello, ledger, false) {
                SessionOpening::Served { session, first } => {
                    connection.session = Some(session);
                    connection.to_client.extend(first);
                }
                SessionOpening::Behind => {
                    connection.waiting = Some(hello);
                    return Ok(false);
                }
                SessionOpening::Refused(_) => self.connection = None,
            }
            return Ok(true);
        }
        let Some(session) = &mut connection.session else { return Ok(false) };
        match session.next(ledger) {
            SessionStep::Wait | SessionStep::AwaitDigests => return Ok(false),
            SessionStep::Send(frames) => connection.to_client.extend(frames),
            SessionStep::SendBucket(bucket) => connection.to_client.extend(bucket.frames().0.iter().cloned()),
        }
        Ok(true)
    }

    /// Runs until no messages are left.
    pub fn settle(&mut self, hubs: &[SimulatedHub], store: &SimulatedHubStore) -> Result<(), TestCaseError> {
        while self.run(hubs, store)? {}
        if self.connection.is_none() {
            self.connect(0, hubs);
        }
        while self.run(hubs, store)? {}
        prop_assert!(!self.lost, "the end of an outage was not said");
        Ok(())
    }

    fn receive(&mut self, event: FeedEvent, store: &SimulatedHubStore) -> Result<(), TestCaseError> {
        match event {
            FeedEvent::Put { key, revision, .. } => self.written(key, revision.number().unwrap())?,
            FeedEvent::Unreadable { key, text, .. } => {
                self.written(key, text.strip_prefix("unreadable ").unwrap().parse().unwrap())?;
            }
            FeedEvent::Delete { key, .. } => {
                let held = self.content.remove(&key);
                prop_assert!(held.is_some(), "{} was deleted twice", key);
                prop_assert!(store.was_deleted_after(&key, held.unwrap()), "{} was never deleted", key);
            }
            FeedEvent::InSync => {
                prop_assert!(!self.in_sync, "in sync twice");
                self.in_sync = true;
            }
            FeedEvent::ConnectionLost { .. } => {
                prop_assert!(!self.lost);
                self.lost = true;
            }
            FeedEvent::ConnectionBack { .. } => {
                prop_assert!(self.lost);
                self.lost = false;
            }
        }
        Ok(())
    }

    fn written(&mut self, key: StoreKey, revision: u64) -> Result<(), TestCaseError> {
        let before = self.latest.insert(key.clone(), revision);
        prop_assert!(before < Some(revision), "{} at {:?}, then at {}", key, before, revision);
        self.content.insert(key, revision);
        Ok(())
    }
}
