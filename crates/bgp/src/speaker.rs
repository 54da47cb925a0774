//! The speaker as others use it: a handle to the task that owns the core.

use crate::config::{Config, ConfigError};
use crate::core::{BestRoute, Core, RouteChange, RouteStatus, Shutdown, Status};
use crate::family::Family;
use crate::net::sockets::Sockets;
use crate::rib::attrs::Attrs;
use crate::task::{Command, Task};
use ipnet::IpNet;
use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot, watch};

/// How many commands may wait. Whoever gives more is slowed down until the speaker has taken some.
const COMMANDS: usize = 1024;
/// How many destinations one look at the routes takes.
const ROUTES_AT_ONCE: u32 = 4096;
/// How many batches of route changes may wait for whoever takes them.
const BATCHES: usize = 16;

#[derive(Debug, thiserror::Error)]
pub enum SpeakerError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("cannot listen on {address}: {error}")]
    Listen { address: SocketAddr, error: io::Error },
    #[error("the speaker has ended")]
    Ended,
}

/// A running speaker. It ends when [`Speaker::shutdown`] is called or the last handle is dropped; the latter looks
/// to peers like [`Shutdown::Graceful`].
#[derive(Clone, Debug)]
pub struct Speaker {
    commands: mpsc::Sender<Command>,
    status: watch::Receiver<Arc<Status>>,
    started: tokio::time::Instant,
}

/// The changes of best routes, in batches. A later change of a prefix replaces an earlier one; who is slow gets only
/// the latest.
#[derive(Debug)]
pub struct Routes {
    batches: mpsc::Receiver<Batch>,
}

/// Some changes, and since when the oldest of them was known.
#[derive(Debug)]
pub struct Batch {
    pub changes: Vec<RouteChange>,
    pub since: Instant,
}

impl Routes {
    /// The next changes. None: the speaker has ended.
    pub async fn next(&mut self) -> Option<Vec<RouteChange>> {
        self.next_batch().await.map(|batch| batch.changes)
    }

    /// The same, with their age.
    pub async fn next_batch(&mut self) -> Option<Batch> {
        self.batches.recv().await
    }
}

impl Speaker {
    /// Begins to listen and to connect. `restarting`: this process takes the place of one whose routes are still in
    /// the kernel; peers are asked to be patient, and nothing is withdrawn before they have advertised what they know.
    pub async fn start(
        config: Config,
        sockets: Sockets,
        restarting: bool,
    ) -> Result<(Speaker, Routes), SpeakerError> {
        let core = Core::new(config.clone(), restarting, Duration::ZERO)?;
        let (commands, from) = mpsc::channel(COMMANDS);
        let (changes, batches) = mpsc::channel(BATCHES);
        let (publish, status) = watch::channel(Arc::new(core.status(Duration::ZERO)));
        let task = Task::new(core, config, sockets, from, changes, publish).await?;
        let started = task.started();
        tokio::spawn(task.run());
        Ok((Speaker { commands, status, started }, Routes { batches }))
    }

    /// Takes a new configuration. Sessions that are the same in both go on untouched. On an error nothing changes.
    pub async fn reconfigure(&self, config: Config) -> Result<(), SpeakerError> {
        self.ask(|answer| Command::Reconfigure(Box::new(config), answer)).await?
    }

    /// Advertises a route that originates here, or changes its attributes.
    pub async fn originate(&self, prefix: IpNet, attrs: Attrs) -> Result<(), SpeakerError> {
        self.send(Command::Originate(prefix, Box::new(attrs))).await
    }

    pub async fn withdraw(&self, prefix: IpNet) -> Result<(), SpeakerError> {
        self.send(Command::Withdraw(prefix)).await
    }

    /// Says that every route that originates here has been given once. Until then End-of-RIB is not sent.
    pub async fn local_complete(&self) -> Result<(), SpeakerError> {
        self.send(Command::LocalComplete).await
    }

    /// The latest snapshot, a fraction of a second old at most. The speaker is not asked, so a busy one answers too.
    pub fn status(&self) -> Result<Status, SpeakerError> {
        self.status.has_changed().map_err(|_| SpeakerError::Ended)?;
        let status = self.status.borrow().clone();
        Ok(Status { now: self.started.elapsed(), ..(*status).clone() })
    }

    /// All paths to all prefixes of a family. They are collected in parts, so that the speaker goes on with other things
    /// in between.
    pub async fn routes(&self, family: Family) -> Result<Vec<RouteStatus>, SpeakerError> {
        let (mut routes, mut from) = (Vec::new(), Some(0u32));
        while let Some(start) = from {
            let range = start..start.saturating_add(ROUTES_AT_ONCE);
            let part = self.ask(|answer| Command::Routes(family, range, answer)).await?;
            routes.extend(part.routes);
            from = part.next;
        }
        Ok(routes)
    }

    /// The best route to a prefix.
    pub async fn route(&self, prefix: IpNet) -> Result<Option<BestRoute>, SpeakerError> {
        self.ask(|answer| Command::Route(prefix, answer)).await
    }

    /// Says which next hops cannot be reached. No path with one of them is used until another call leaves it out.
    pub async fn set_unreachable(&self, next_hops: HashSet<IpAddr>) -> Result<(), SpeakerError> {
        self.send(Command::Unreachable(next_hops)).await
    }

    /// Asks a peer for its routes again. A name nobody has is no error.
    pub async fn refresh(&self, peer: &str) -> Result<(), SpeakerError> {
        self.send(Command::Refresh(peer.to_owned())).await
    }

    /// Ends all sessions and returns when a Cease has been sent on each.
    pub async fn shutdown(&self, how: Shutdown) -> Result<(), SpeakerError> {
        self.ask(|answer| Command::Shutdown(how, answer)).await
    }

    async fn send(&self, command: Command) -> Result<(), SpeakerError> {
        self.commands.send(command).await.map_err(|_| SpeakerError::Ended)
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, SpeakerError> {
        let (answer, answered) = oneshot::channel();
        self.send(command(answer)).await?;
        answered.await.map_err(|_| SpeakerError::Ended)
    }
}
