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
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

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
    commands: mpsc::UnboundedSender<Command>,
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
    /// the kernel; peers are asked to be patient, and nothing is withdrawn before they have told what they know.
    pub async fn start(
        config: Config,
        sockets: Sockets,
        restarting: bool,
    ) -> Result<(Speaker, Routes), SpeakerError> {
        let core = Core::new(config.clone(), restarting, Duration::ZERO)?;
        let (commands, from) = mpsc::unbounded_channel();
        let (changes, batches) = mpsc::channel(BATCHES);
        let task = Task::new(core, config, sockets, from, changes).await?;
        tokio::spawn(task.run());
        Ok((Speaker { commands }, Routes { batches }))
    }

    /// Takes a new configuration. Sessions that are the same in both go on untouched. On an error nothing changes.
    pub async fn reconfigure(&self, config: Config) -> Result<(), SpeakerError> {
        self.ask(|answer| Command::Reconfigure(Box::new(config), answer)).await?
    }

    /// Announces a route of our own, or changes what is said of it.
    pub fn originate(&self, prefix: IpNet, attrs: Attrs) -> Result<(), SpeakerError> {
        self.tell(Command::Originate(prefix, Box::new(attrs)))
    }

    pub fn withdraw(&self, prefix: IpNet) -> Result<(), SpeakerError> {
        self.tell(Command::Withdraw(prefix))
    }

    /// Says that every route of our own has been announced once. Until then peers are not told that they know all.
    pub fn local_complete(&self) -> Result<(), SpeakerError> {
        self.tell(Command::LocalComplete)
    }

    pub async fn status(&self) -> Result<Status, SpeakerError> {
        self.ask(Command::Status).await
    }

    /// All paths to all prefixes of a family.
    pub async fn routes(&self, family: Family) -> Result<Vec<RouteStatus>, SpeakerError> {
        self.ask(|answer| Command::Routes(family, answer)).await
    }

    /// The best route to a prefix.
    pub async fn route(&self, prefix: IpNet) -> Result<Option<BestRoute>, SpeakerError> {
        self.ask(|answer| Command::Route(prefix, answer)).await
    }

    /// Says which next hops cannot be reached. No path with one of them is used until another call leaves it out.
    pub fn set_unreachable(&self, next_hops: HashSet<IpAddr>) -> Result<(), SpeakerError> {
        self.tell(Command::Unreachable(next_hops))
    }

    /// Asks a peer for its routes again. A name nobody has is no error.
    pub fn refresh(&self, peer: &str) -> Result<(), SpeakerError> {
        self.tell(Command::Refresh(peer.to_owned()))
    }

    /// Ends all sessions and returns when the connections have been told.
    pub async fn shutdown(&self, how: Shutdown) -> Result<(), SpeakerError> {
        self.ask(|answer| Command::Shutdown(how, answer)).await
    }

    fn tell(&self, command: Command) -> Result<(), SpeakerError> {
        self.commands.send(command).map_err(|_| SpeakerError::Ended)
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, SpeakerError> {
        let (answer, answered) = oneshot::channel();
        self.tell(command(answer))?;
        answered.await.map_err(|_| SpeakerError::Ended)
    }
}
