//! The public handle of a speaker. It sends commands to the task that owns the core.

use crate::config::{ConfigError, SpeakerConfig};
use crate::core::{BestRoute, RouteChange, RouteStatus, ShutdownMode, SpeakerCore, SpeakerStatus};
use crate::family::BgpFamily;
use crate::net::sockets::SocketFactory;
use crate::rib::attrs::RouteAttrs;
use crate::task::{SpeakerCommand, SpeakerTask};
use ipnet::IpNet;
use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot, watch};

/// Capacity of the command channel. When it is full, callers wait until the speaker has taken commands.
const COMMAND_QUEUE_LENGTH: usize = 1024;
/// Number of destinations per request when routes are listed.
const ROUTES_PER_PAGE: u32 = 4096;
/// Capacity of the channel for batches of route changes.
const BATCH_QUEUE_LENGTH: usize = 16;

#[derive(Debug, thiserror::Error)]
pub enum SpeakerError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("cannot listen on {address}: {error}")]
    Listen { address: SocketAddr, error: io::Error },
    #[error("the speaker has ended")]
    Ended,
}

/// A running speaker. It ends when [`Speaker::shutdown`] is called or the last handle is dropped; to peers the latter
/// looks like [`ShutdownMode::Graceful`].
#[derive(Clone, Debug)]
pub struct Speaker {
    commands: mpsc::Sender<SpeakerCommand>,
    status: watch::Receiver<Arc<SpeakerStatus>>,
    started: tokio::time::Instant,
}

/// The changes of best routes, in batches. A later change of a prefix replaces an earlier one, so a slow consumer
/// receives only the latest state.
#[derive(Debug)]
pub struct RouteChangeStream {
    batches: mpsc::Receiver<RouteChangeBatch>,
}

/// A batch of route changes, with the time since which the oldest of them has been known.
#[derive(Debug)]
pub struct RouteChangeBatch {
    pub changes: Vec<RouteChange>,
    pub since: Instant,
}

impl RouteChangeStream {
    /// Returns the next changes, or `None` if the speaker has ended.
    pub async fn next(&mut self) -> Option<Vec<RouteChange>> {
        self.next_batch().await.map(|batch| batch.changes)
    }

    /// Returns the next changes together with their age.
    pub async fn next_batch(&mut self) -> Option<RouteChangeBatch> {
        self.batches.recv().await
    }
}

impl Speaker {
    /// Starts listening and connecting. `restarting` means that this process replaces one whose routes are still in
    /// the kernel: peers are requested to keep our routes (RFC 4724), and no route is withdrawn before the peers have
    /// advertised theirs.
    pub async fn start(
        config: SpeakerConfig,
        sockets: SocketFactory,
        restarting: bool,
    ) -> Result<(Speaker, RouteChangeStream), SpeakerError> {
        let core = SpeakerCore::new(config.clone(), restarting, Duration::ZERO)?;
        let (commands, from) = mpsc::channel(COMMAND_QUEUE_LENGTH);
        let (changes, batches) = mpsc::channel(BATCH_QUEUE_LENGTH);
        let (publish, status) = watch::channel(Arc::new(core.status(Duration::ZERO)));
        let task = SpeakerTask::new(core, config, sockets, from, changes, publish).await?;
        let started = task.started();
        tokio::spawn(task.run());
        Ok((Speaker { commands, status, started }, RouteChangeStream { batches }))
    }

    /// Replaces the configuration. Sessions that are unchanged continue undisturbed. On an error nothing changes.
    pub async fn reconfigure(&self, config: SpeakerConfig) -> Result<(), SpeakerError> {
        self.ask(|answer| SpeakerCommand::Reconfigure(Box::new(config), answer)).await?
    }

    /// Advertises a route that originates here, or changes its attributes.
    pub async fn originate(&self, prefix: IpNet, attrs: RouteAttrs) -> Result<(), SpeakerError> {
        self.send(SpeakerCommand::Originate(prefix, Box::new(attrs))).await
    }

    pub async fn withdraw(&self, prefix: IpNet) -> Result<(), SpeakerError> {
        self.send(SpeakerCommand::Withdraw(prefix)).await
    }

    /// Declares that every route that originates here has been passed in once. End-of-RIB is not sent before that.
    pub async fn local_complete(&self) -> Result<(), SpeakerError> {
        self.send(SpeakerCommand::LocalComplete).await
    }

    /// Returns the latest snapshot, which is at most a fraction of a second old. Does not query the speaker task, so
    /// it also works while that task is busy.
    pub fn status(&self) -> Result<SpeakerStatus, SpeakerError> {
        self.status.has_changed().map_err(|_| SpeakerError::Ended)?;
        let status = self.status.borrow().clone();
        Ok(SpeakerStatus { now: self.started.elapsed(), ..(*status).clone() })
    }

    /// Returns all paths to all prefixes of a family. They are collected in parts, so that the speaker can handle
    /// other events in between.
    pub async fn routes(&self, family: BgpFamily) -> Result<Vec<RouteStatus>, SpeakerError> {
        let mut routes = Vec::new();
        let mut from = Some(0u32);
        while let Some(start) = from {
            let range = start..start.saturating_add(ROUTES_PER_PAGE);
            let part = self.ask(|answer| SpeakerCommand::Routes(family, range, answer)).await?;
            routes.extend(part.routes);
            from = part.next;
        }
        Ok(routes)
    }

    /// Returns the best route to a prefix.
    pub async fn route(&self, prefix: IpNet) -> Result<Option<BestRoute>, SpeakerError> {
        self.ask(|answer| SpeakerCommand::Route(prefix, answer)).await
    }

    /// Replaces the set of unreachable next hops. Paths with one of them are not used until a later call omits it.
    pub async fn set_unreachable(&self, next_hops: HashSet<IpAddr>) -> Result<(), SpeakerError> {
        self.send(SpeakerCommand::Unreachable(next_hops)).await
    }

    /// Requests a route refresh from a peer. An unknown name is not an error.
    pub async fn refresh(&self, peer: &str) -> Result<(), SpeakerError> {
        self.send(SpeakerCommand::Refresh(peer.to_owned())).await
    }

    /// Ends all sessions. With [`ShutdownMode::Administrative`] returns after a Cease has been sent on each.
    pub async fn shutdown(&self, how: ShutdownMode) -> Result<(), SpeakerError> {
        self.ask(|answer| SpeakerCommand::Shutdown(how, answer)).await
    }

    async fn send(&self, command: SpeakerCommand) -> Result<(), SpeakerError> {
        self.commands.send(command).await.map_err(|_| SpeakerError::Ended)
    }

    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> SpeakerCommand,
    ) -> Result<T, SpeakerError> {
        let (answer, answered) = oneshot::channel();
        self.send(command(answer)).await?;
        answered.await.map_err(|_| SpeakerError::Ended)
    }
}
