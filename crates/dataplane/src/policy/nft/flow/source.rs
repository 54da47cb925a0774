//! Starts and stops the readers as the settings request.

use super::super::kernel::NftablesClient;
use super::super::table::TableFamily;
use super::identity::FlowIdentities;
use super::reader::{ConnectionReader, MessageReader, ReaderContext};
use crate::error::DataplaneResult;
use crate::flow::{FlowSource, SharedGeneration};
use crate::netns::Netns;
use crate::sysctl::{self, SysctlSetting};
use futures::FutureExt;
use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tortie_plan::flow::{FlowEvent, FlowSourceSettings};

/// Events that wait for the receiver.
const EVENT_CHANNEL_CAPACITY: usize = 16_384;
/// Delay after readers have failed or could not be started.
const RESTART_DELAY: Duration = Duration::from_secs(10);

/// Connection tracking reports bytes and times only of connections that were opened with these settings.
const SWITCHES: [&str; 2] = ["net/netfilter/nf_conntrack_acct", "net/netfilter/nf_conntrack_timestamp"];

/// The flow source of the policy engine.
pub struct NftFlowSource {
    netns: Netns,
    client: Arc<NftablesClient>,
    pub identities: FlowIdentities,
    pub generation: SharedGeneration,
    sender: mpsc::Sender<FlowEvent>,
    receiver: Option<mpsc::Receiver<FlowEvent>>,
    running: Option<RunningReaders>,
    retry_at: Option<Instant>,
}

struct RunningReaders {
    settings: FlowSourceSettings,
    tasks: [JoinHandle<()>; 2],
}

impl Drop for RunningReaders {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl NftFlowSource {
    pub fn open(netns: &Netns) -> DataplaneResult<NftFlowSource> {
        let (sender, receiver) = mpsc::channel(EVENT_CHANNEL_CAPACITY);
        Ok(NftFlowSource {
            netns: netns.clone(),
            client: Arc::new(NftablesClient::open(netns, TableFamily::Inet)?),
            identities: FlowIdentities::default(),
            generation: SharedGeneration::default(),
            sender,
            receiver: Some(receiver),
            running: None,
            retry_at: None,
        })
    }

    /// Returns the netlink port of the requests that remove keys.
    pub fn port(&self) -> u32 {
        self.client.port()
    }

    async fn start(&self, settings: FlowSourceSettings) -> DataplaneResult<RunningReaders> {
        let switches = SWITCHES.map(|key| SysctlSetting::lenient(key.to_owned(), 1));
        sysctl::write(&self.netns, switches.into()).await?;
        let context = ReaderContext {
            netns: self.netns.clone(),
            settings,
            client: self.client.clone(),
            identities: self.identities.clone(),
            generation: self.generation.clone(),
            events: self.sender.clone(),
            dump: Arc::new(Notify::new()),
        };
        let connections = ConnectionReader::open(context.clone())?;
        let messages = MessageReader::open(context).await?;
        let tasks =
            [tokio::spawn(messages.run().map(log_failure)), tokio::spawn(connections.run().map(log_failure))];
        Ok(RunningReaders { settings, tasks })
    }

    async fn converge_readers(&mut self, wanted: Option<FlowSourceSettings>) {
        let failed =
            self.running.as_ref().is_some_and(|running| running.tasks.iter().any(JoinHandle::is_finished));
        if failed {
            self.retry_at = Some(Instant::now() + RESTART_DELAY);
        }
        if failed || self.running.as_ref().map(|running| running.settings) != wanted {
            self.running = None;
        }
        let Some(settings) = wanted.filter(|_| self.running.is_none()) else { return };
        if self.retry_at.is_some_and(|retry_at| Instant::now() < retry_at) {
            return;
        }
        match self.start(settings).await {
            Ok(running) => {
                self.running = Some(running);
                self.retry_at = None;
            }
            Err(error) => {
                self.retry_at = Some(Instant::now() + RESTART_DELAY);
                tracing::warn!(%error, "cannot record flows; will retry");
            }
        }
    }
}

fn log_failure(outcome: DataplaneResult<()>) {
    if let Err(error) = outcome {
        tracing::warn!(%error, "a reader of flows has stopped; it is started again");
    }
}

impl FlowSource for NftFlowSource {
    fn converge(&mut self, settings: Option<FlowSourceSettings>) -> BoxFuture<'_, ()> {
        self.converge_readers(settings).boxed()
    }

    fn take_events(&mut self) -> Option<mpsc::Receiver<FlowEvent>> {
        self.receiver.take()
    }

    fn is_running(&self) -> bool {
        self.running.is_some()
    }

    fn generation(&self) -> SharedGeneration {
        self.generation.clone()
    }
}
