//! The one task that owns the core: it alone decides, everything else sends it messages.

use crate::config::Config;
use crate::core::{BestRoute, ConnectionId, Core, RouteStatus, Shutdown, SocketRequest, Status};
use crate::family::Family;
use crate::fib_lag::FibLag;
use crate::net::connection::{Connection, Input};
use crate::net::sockets::{Sockets, set_listener_passwords, set_ttl_security};
use crate::rib::attrs::Attrs;
use crate::speaker::{Batch, SpeakerError};
use ipnet::IpNet;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::Instant;
use tracing::{debug, warn};

/// How much of what connections read may wait; a peer that sends faster than we work is slowed down by TCP.
const INPUT_QUEUE: usize = 64;
/// How many messages are taken in before anything is sent out.
const MAX_INPUTS_PER_TURN: usize = 64;
/// How many route changes go out at once.
const BATCH: usize = 4096;
/// How long after a failure to accept the next connection is looked for: the process may be out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub enum Command {
    Reconfigure(Box<Config>, oneshot::Sender<Result<(), SpeakerError>>),
    Originate(IpNet, Box<Attrs>),
    Withdraw(IpNet),
    LocalComplete,
    Status(oneshot::Sender<Status>),
    Routes(Family, oneshot::Sender<Vec<RouteStatus>>),
    Route(IpNet, oneshot::Sender<Option<BestRoute>>),
    Refresh(String),
    Unreachable(HashSet<IpAddr>),
    Shutdown(Shutdown, oneshot::Sender<()>),
}

pub struct Task {
    core: Core,
    config: Config,
    sockets: Sockets,
    commands: mpsc::UnboundedReceiver<Command>,
    changes: mpsc::Sender<Batch>,
    fib_lag: FibLag,
    inputs: mpsc::Receiver<Input>,
    input: mpsc::Sender<Input>,
    started: Instant,
    connections: HashMap<ConnectionId, Connection>,
    connecting: HashMap<ConnectionId, AbortHandle>,
    /// Connections that are writing their last message.
    closing: Vec<JoinHandle<()>>,
    listeners: HashMap<SocketAddr, Listener>,
}

struct Listener {
    socket: Arc<TcpListener>,
    task: AbortHandle,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Task {
    pub async fn new(
        core: Core,
        config: Config,
        sockets: Sockets,
        commands: mpsc::UnboundedReceiver<Command>,
        changes: mpsc::Sender<Batch>,
    ) -> Result<Task, SpeakerError> {
        let (input, inputs) = mpsc::channel(INPUT_QUEUE);
        let mut task = Task {
            core,
            sockets,
            commands,
            changes,
            fib_lag: FibLag::default(),
            inputs,
            input,
            started: Instant::now(),
            connections: HashMap::new(),
            connecting: HashMap::new(),
            closing: Vec::new(),
            listeners: HashMap::new(),
            config,
        };
        task.listeners = task.listen(&task.config).await?;
        Ok(task)
    }

    pub async fn run(mut self) {
        loop {
            self.carry_out();
            self.fib_lag.recorded(self.core.changes_recorded(), std::time::Instant::now());
            let timer = self.core.next_timer().map(|at| self.started + at);
            tokio::select! {
                biased;
                command = self.commands.recv() => match command {
                    // Nobody can speak to us any more.
                    None => return,
                    Some(command) => {
                        if self.command(command).await.is_break() {
                            return;
                        }
                        self.drain_commands().await;
                    }
                },
                () = sleep_until(timer) => {
                    let now = self.now();
                    self.core.tick(now);
                }
                permit = self.changes.clone().reserve_owned(), if self.core.has_changes() => {
                    let since = self.fib_lag.oldest(self.core.changes_taken());
                    let changes = self.core.changes(BATCH);
                    // Otherwise nobody wants them.
                    if let Ok(permit) = permit {
                        let since = since.unwrap_or_else(std::time::Instant::now);
                        permit.send(Batch { changes, since });
                    }
                }
                input = self.inputs.recv() => {
                    let mut input = input;
                    for _ in 0..MAX_INPUTS_PER_TURN {
                        let Some(one) = input else { break };
                        self.input(one);
                        input = self.inputs.try_recv().ok();
                    }
                    if let Some(one) = input {
                        self.input(one);
                    }
                }
            }
        }
    }

    async fn drain_commands(&mut self) {
        for _ in 0..BATCH {
            let Ok(command) = self.commands.try_recv() else { return };
            match command {
                Command::Originate(prefix, attrs) => self.core.originate(prefix, *attrs),
                Command::Withdraw(prefix) => self.core.withdraw(prefix),
                other => {
                    // Anything that is asked for sees what was said before.
                    if self.command(other).await.is_break() {
                        self.commands.close();
                        return;
                    }
                }
            }
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    async fn command(&mut self, command: Command) -> std::ops::ControlFlow<()> {
        let now = self.now();
        match command {
            Command::Reconfigure(config, answer) => {
                let outcome = self.reconfigure(*config).await;
                let _ = answer.send(outcome);
            }
            Command::Originate(prefix, attrs) => self.core.originate(prefix, *attrs),
            Command::Withdraw(prefix) => self.core.withdraw(prefix),
            Command::LocalComplete => self.core.local_complete(now),
            Command::Status(answer) => drop(answer.send(self.core.status(now))),
            Command::Routes(family, answer) => drop(answer.send(self.core.routes(family))),
            Command::Route(prefix, answer) => drop(answer.send(self.core.route(prefix))),
            Command::Unreachable(next_hops) => self.core.set_unreachable(&next_hops),
            Command::Refresh(peer) => self.core.request_refresh(now, &peer),
            Command::Shutdown(how, answer) => {
                self.listeners.clear();
                self.core.shutdown(now, &how);
                self.carry_out();
                for writer in self.closing.drain(..) {
                    let _ = writer.await;
                }
                let _ = answer.send(());
                return std::ops::ControlFlow::Break(());
            }
        }
        std::ops::ControlFlow::Continue(())
    }

    async fn reconfigure(&mut self, config: Config) -> Result<(), SpeakerError> {
        config.check()?;
        let mut listeners = self.listen(&config).await?;
        for (address, listener) in self.listeners.drain() {
            if config.listen.contains(&address) {
                listeners.insert(address, listener);
            }
        }
        for (address, listener) in &listeners {
            set_listener_passwords(&*listener.socket, *address, Some(&self.config), &config)
                .map_err(|error| SpeakerError::Listen { address: *address, error })?;
        }
        self.listeners = listeners;
        let now = self.now();
        self.core.reconfigure(now, config.clone())?;
        self.config = config;
        Ok(())
    }

    /// Sockets for the addresses nobody listens on yet.
    async fn listen(&self, config: &Config) -> Result<HashMap<SocketAddr, Listener>, SpeakerError> {
        let mut listeners = HashMap::new();
        for address in config.listen.iter().filter(|address| !self.listeners.contains_key(address)) {
            let socket = self.sockets.listen(*address, config).await;
            let socket = socket.map_err(|error| SpeakerError::Listen { address: *address, error })?;
            let socket = Arc::new(socket);
            let task = tokio::spawn(accept(socket.clone(), self.input.clone())).abort_handle();
            listeners.insert(*address, Listener { socket, task });
        }
        Ok(listeners)
    }

    fn input(&mut self, input: Input) {
        let now = self.now();
        match input {
            Input::Connected(conn, stream, local) => {
                // The core may have changed its mind meanwhile.
                if self.connecting.remove(&conn).is_some() {
                    self.connections.insert(conn, Connection::new(conn, stream, self.input.clone()));
                    self.core.connected(now, conn, local);
                }
            }
            Input::Accepted(stream, local, remote) => self.accepted(now, stream, local, remote),
            Input::Received(conn, bytes) => self.core.received(now, conn, bytes),
            Input::Written(conn) => {
                if let Some(connection) = self.connections.get_mut(&conn) {
                    connection.busy = false;
                    self.core.sending(now, conn, false);
                }
            }
            Input::Closed(conn, reason) => {
                self.connecting.remove(&conn);
                self.connections.remove(&conn);
                self.core.closed(now, conn, &reason);
            }
        }
    }

    fn accepted(&mut self, now: Duration, stream: TcpStream, local: SocketAddr, remote: SocketAddr) {
        let Some(conn) = self.core.accepted(now, local, remote) else {
            debug!(%remote, "connection not wanted");
            return;
        };
        let hops = self.core.ttl_security(conn);
        let prepared = hops.map_or(Ok(()), |hops| set_ttl_security(&stream, remote.ip(), hops));
        if let Err(error) = prepared.and_then(|()| stream.set_nodelay(true)) {
            self.core.closed(now, conn, &error.to_string());
            return;
        }
        self.connections.insert(conn, Connection::new(conn, stream, self.input.clone()));
    }

    /// Carries out what the core ordered and gives every connection that can take it something to send.
    fn carry_out(&mut self) {
        while let Some(request) = self.core.next_request() {
            match request {
                SocketRequest::Connect { conn, dial } => {
                    let (sockets, input) = (self.sockets.clone(), self.input.clone());
                    let task = tokio::spawn(async move {
                        let outcome = sockets.dial(&dial).await.and_then(|stream| {
                            let local = stream.local_addr()?;
                            Ok(Input::Connected(conn, stream, local))
                        });
                        let message = outcome.unwrap_or_else(|error| Input::Closed(conn, error.to_string()));
                        let _ = input.send(message).await;
                    });
                    self.connecting.insert(conn, task.abort_handle());
                }
                SocketRequest::Close { conn, last } => {
                    if let Some(dial) = self.connecting.remove(&conn) {
                        dial.abort();
                    }
                    if let Some(connection) = self.connections.remove(&conn) {
                        self.closing.retain(|writer| !writer.is_finished());
                        self.closing.push(connection.close(last));
                    }
                }
            }
        }
        let now = self.now();
        for (conn, connection) in self.connections.iter_mut().filter(|(_, connection)| !connection.busy) {
            if let Some(bytes) = self.core.output(*conn) {
                connection.write(bytes);
                self.core.sending(now, *conn, true);
            }
        }
        self.core.collect_garbage();
    }
}

async fn accept(listener: Arc<TcpListener>, input: mpsc::Sender<Input>) {
    loop {
        let accepted = listener.accept().await.and_then(|(stream, remote)| {
            let local = stream.local_addr()?;
            Ok(Input::Accepted(stream, local, remote))
        });
        match accepted {
            Ok(message) => {
                if input.send(message).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
