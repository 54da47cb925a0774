//! The task that owns the core and makes all decisions. All other tasks send it messages.

use crate::config::SpeakerConfig;
use crate::core::{
    BestRoute, ConnectionId, RoutePage, ShutdownMode, SocketRequest, SpeakerCore, SpeakerStatus,
};
use crate::family::BgpFamily;
use crate::fib_lag::FibLag;
use crate::net::connection::{ConnectionEvent, ConnectionHandle};
use crate::net::sockets::{SocketFactory, set_listener_passwords, set_ttl_security};
use crate::rib::attrs::RouteAttrs;
use crate::speaker::{RouteChangeBatch, SpeakerError};
use ipnet::IpNet;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::Instant;
use tracing::{debug, warn};

/// Capacity of the channel for events of all connections. When it is full, senders wait and are served in FIFO order;
/// a connection has at most two reads in flight.
const INPUT_QUEUE_LENGTH: usize = 64;
/// Maximum number of inputs that are processed before anything is sent, so that keepalives are not delayed.
const MAX_INPUTS_PER_TURN: usize = 64;
const MAX_TURN_DURATION: Duration = Duration::from_millis(10);
/// Minimum interval between two status snapshots.
const STATUS_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of connections that are writing their last message. Beyond it the oldest one is aborted.
const MAX_CLOSING_CONNECTIONS: usize = 256;
/// Maximum number of route changes in one batch.
const MAX_CHANGES_PER_BATCH: usize = 4096;
/// Delay after a failed accept: the process may be out of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

pub enum SpeakerCommand {
    Reconfigure(Box<SpeakerConfig>, oneshot::Sender<Result<(), SpeakerError>>),
    Originate(IpNet, Box<RouteAttrs>),
    Withdraw(IpNet),
    LocalComplete,
    Routes(BgpFamily, Range<u32>, oneshot::Sender<RoutePage>),
    Route(IpNet, oneshot::Sender<Option<BestRoute>>),
    Refresh(String),
    Unreachable(HashSet<IpAddr>),
    Shutdown(ShutdownMode, oneshot::Sender<()>),
}

pub struct SpeakerTask {
    core: SpeakerCore,
    config: SpeakerConfig,
    sockets: SocketFactory,
    commands: mpsc::Receiver<SpeakerCommand>,
    changes: mpsc::Sender<RouteChangeBatch>,
    fib_lag: FibLag,
    inputs: mpsc::Receiver<ConnectionEvent>,
    input: mpsc::Sender<ConnectionEvent>,
    started: Instant,
    connections: HashMap<ConnectionId, ConnectionHandle>,
    connecting: HashMap<ConnectionId, ConnectAttempt>,
    /// Connections that are writing their last message.
    closing: VecDeque<JoinHandle<()>>,
    /// Connections with bytes that the core has not finished processing, served round-robin.
    unfinished: VecDeque<ConnectionId>,
    status: watch::Sender<Arc<SpeakerStatus>>,
    published: Instant,
    /// Whether something may have changed since the last snapshot.
    outdated: bool,
    listeners: HashMap<SocketAddr, BgpListener>,
}

/// An outgoing connection attempt.
struct ConnectAttempt {
    task: AbortHandle,
    /// `None` if the attempt is already being abandoned.
    give_up: Option<oneshot::Sender<()>>,
}

struct BgpListener {
    socket: Arc<TcpListener>,
    task: AbortHandle,
}

impl Drop for BgpListener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl SpeakerTask {
    pub async fn new(
        core: SpeakerCore,
        config: SpeakerConfig,
        sockets: SocketFactory,
        commands: mpsc::Receiver<SpeakerCommand>,
        changes: mpsc::Sender<RouteChangeBatch>,
        status: watch::Sender<Arc<SpeakerStatus>>,
    ) -> Result<SpeakerTask, SpeakerError> {
        let (input, inputs) = mpsc::channel(INPUT_QUEUE_LENGTH);
        let mut task = SpeakerTask {
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
            closing: VecDeque::new(),
            unfinished: VecDeque::new(),
            status,
            published: Instant::now(),
            outdated: false,
            listeners: HashMap::new(),
            config,
        };
        task.listeners = task.listen(&task.config).await?;
        Ok(task)
    }

    /// Returns the instant from which all times are counted.
    pub fn started(&self) -> Instant {
        self.started
    }

    pub async fn run(mut self) {
        loop {
            let unsent = self.carry_out();
            self.fib_lag.recorded(self.core.changes_recorded(), std::time::Instant::now());
            if self.outdated && self.published.elapsed() >= STATUS_INTERVAL {
                self.publish();
            }
            let timer = self.core.next_timer().map(|at| self.started + at);
            let snapshot = self.outdated.then(|| self.published + STATUS_INTERVAL);
            let busy = unsent || !self.unfinished.is_empty();
            tokio::select! {
                biased;
                () = sleep_until(timer) => {
                    let now = self.now();
                    self.core.tick(now);
                    self.outdated = true;
                }
                command = self.commands.recv() => match command {
                    // All handles have been dropped.
                    None => return,
                    Some(command) => {
                        self.outdated = true;
                        if self.command(command).await.is_break() {
                            return;
                        }
                        self.drain_commands().await;
                    }
                },
                permit = self.changes.clone().reserve_owned(), if self.core.has_changes() => {
                    let since = self.fib_lag.oldest(self.core.changes_taken());
                    let changes = self.core.changes(MAX_CHANGES_PER_BATCH);
                    // If the receiver has been dropped, discard the changes.
                    if let Ok(permit) = permit {
                        let since = since.unwrap_or_else(std::time::Instant::now);
                        permit.send(RouteChangeBatch { changes, since });
                    }
                }
                input = self.inputs.recv() => {
                    self.outdated = true;
                    self.take_in(input);
                }
                () = sleep_until(snapshot) => {}
                // Work is left over from the previous turn.
                () = tokio::task::yield_now(), if busy => self.outdated = true,
            }
            self.finish();
        }
    }

    fn take_in(&mut self, mut input: Option<ConnectionEvent>) {
        let begun = Instant::now();
        for _ in 0..MAX_INPUTS_PER_TURN {
            let Some(one) = input else { return };
            self.input(one);
            if begun.elapsed() >= MAX_TURN_DURATION {
                return;
            }
            input = self.inputs.try_recv().ok();
        }
        if let Some(one) = input {
            self.input(one);
        }
    }

    /// Continues with connections whose bytes exceeded the work of one turn.
    fn finish(&mut self) {
        let begun = Instant::now();
        for _ in 0..self.unfinished.len() {
            let Some(conn) = self.unfinished.pop_front() else { return };
            let now = self.now();
            let more = self.core.resume(now, conn);
            self.received(now, conn, more);
            if begun.elapsed() >= MAX_TURN_DURATION {
                return;
            }
        }
    }

    /// Continues after the core has processed bytes of a connection. `more` means that it has not finished with them.
    fn received(&mut self, now: Duration, conn: ConnectionId, mut more: bool) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        while !more {
            connection.read_done();
            let Some(bytes) = connection.waiting.pop_front() else { break };
            more = self.core.received(now, conn, bytes);
        }
        connection.unfinished = more;
        if more {
            self.unfinished.push_back(conn);
        }
    }

    fn publish(&mut self) {
        let status = self.core.status(self.now());
        self.status.send_replace(Arc::new(status));
        self.published = Instant::now();
        self.outdated = false;
    }

    async fn drain_commands(&mut self) {
        for _ in 0..MAX_CHANGES_PER_BATCH {
            let Ok(command) = self.commands.try_recv() else { return };
            match command {
                SpeakerCommand::Originate(prefix, attrs) => self.core.originate(prefix, *attrs),
                SpeakerCommand::Withdraw(prefix) => self.core.withdraw(prefix),
                other => {
                    // A query sees the effect of every command that was sent before it.
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

    async fn command(&mut self, command: SpeakerCommand) -> std::ops::ControlFlow<()> {
        let now = self.now();
        match command {
            SpeakerCommand::Reconfigure(config, answer) => {
                let outcome = self.reconfigure(*config).await;
                self.publish();
                let _ = answer.send(outcome);
            }
            SpeakerCommand::Originate(prefix, attrs) => self.core.originate(prefix, *attrs),
            SpeakerCommand::Withdraw(prefix) => self.core.withdraw(prefix),
            SpeakerCommand::LocalComplete => self.core.local_complete(now),
            SpeakerCommand::Routes(family, range, answer) => {
                drop(answer.send(self.core.some_routes(family, range)));
            }
            SpeakerCommand::Route(prefix, answer) => drop(answer.send(self.core.route(prefix))),
            SpeakerCommand::Unreachable(next_hops) => self.core.set_unreachable(&next_hops),
            SpeakerCommand::Refresh(peer) => self.core.request_refresh(now, &peer),
            SpeakerCommand::Shutdown(how, answer) => {
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

    async fn reconfigure(&mut self, config: SpeakerConfig) -> Result<(), SpeakerError> {
        config.check()?;
        let opened = self.listen(&config).await?;
        let kept = self.listeners.iter().filter(|(address, _)| config.listen.contains(address));
        // The listeners stay as they are until every password is set.
        for (address, listener) in kept.chain(&opened) {
            set_listener_passwords(&*listener.socket, *address, Some(&self.config), &config)
                .map_err(|error| SpeakerError::Listen { address: *address, error })?;
        }
        self.listeners.retain(|address, _| config.listen.contains(address));
        self.listeners.extend(opened);
        let now = self.now();
        self.core.reconfigure(now, config.clone())?;
        self.config = config;
        Ok(())
    }

    /// Opens sockets for the addresses that have no listener yet.
    async fn listen(&self, config: &SpeakerConfig) -> Result<HashMap<SocketAddr, BgpListener>, SpeakerError> {
        let mut listeners = HashMap::new();
        for address in config.listen.iter().filter(|address| !self.listeners.contains_key(address)) {
            let socket = self.sockets.listen(*address, config).await;
            if let Err(error) = &socket
                && address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED)
                && is_without_ipv6(error)
            {
                tracing::info!("the kernel has no IPv6; BGP listens on IPv4 only");
                continue;
            }
            let socket = socket.map_err(|error| SpeakerError::Listen { address: *address, error })?;
            let socket = Arc::new(socket);
            let task = tokio::spawn(accept(socket.clone(), self.input.clone())).abort_handle();
            listeners.insert(*address, BgpListener { socket, task });
        }
        Ok(listeners)
    }

    fn input(&mut self, input: ConnectionEvent) {
        let now = self.now();
        match input {
            ConnectionEvent::Connected(conn, stream, local) => {
                // The core may have closed the attempt in the meantime.
                if self.connecting.remove(&conn).is_some() {
                    self.connections.insert(conn, ConnectionHandle::new(conn, stream, self.input.clone()));
                    self.core.connected(now, conn, local);
                }
            }
            ConnectionEvent::GivenUp(conn) => {
                if self.connecting.remove(&conn).is_some() {
                    self.core.given_up(now, conn);
                }
            }
            ConnectionEvent::Accepted(stream, local, remote) => self.accepted(now, stream, local, remote),
            ConnectionEvent::Received(conn, bytes) => {
                let Some(connection) = self.connections.get_mut(&conn) else { return };
                if connection.unfinished {
                    connection.waiting.push_back(bytes);
                } else {
                    let more = self.core.received(now, conn, bytes);
                    self.received(now, conn, more);
                }
            }
            ConnectionEvent::Written(conn) => {
                if let Some(connection) = self.connections.get_mut(&conn) {
                    connection.busy = false;
                    self.core.sending(now, conn, false);
                }
            }
            ConnectionEvent::Closed(conn, reason) => {
                self.connecting.remove(&conn);
                self.connections.remove(&conn);
                self.core.closed(now, conn, &reason);
            }
        }
    }

    fn accepted(&mut self, now: Duration, stream: TcpStream, local: SocketAddr, remote: SocketAddr) {
        let Some(conn) = self.core.accepted(now, local, remote) else {
            debug!(%remote, "connection rejected: unknown peer, or the peer has or must not have a session");
            return;
        };
        let hops = self.core.ttl_security(conn);
        let prepared = hops.map_or(Ok(()), |hops| set_ttl_security(&stream, remote.ip(), hops));
        if let Err(error) = prepared.and_then(|()| stream.set_nodelay(true)) {
            self.core.closed(now, conn, &error.to_string());
            return;
        }
        self.connections.insert(conn, ConnectionHandle::new(conn, stream, self.input.clone()));
    }

    /// Executes the requests of the core and passes output to every connection that is ready to write. Returns
    /// whether there is more to send than one turn of work allows.
    fn carry_out(&mut self) -> bool {
        while let Some(request) = self.core.next_request() {
            match request {
                SocketRequest::Connect { conn, dial } => {
                    let sockets = self.sockets.clone();
                    let input = self.input.clone();
                    let (give_up, given_up) = oneshot::channel();
                    let task = tokio::spawn(async move {
                        let outcome = sockets.dial(&dial, given_up).await.and_then(|stream| match stream {
                            Some(stream) => {
                                let local = stream.local_addr()?;
                                Ok(ConnectionEvent::Connected(conn, stream, local))
                            }
                            None => Ok(ConnectionEvent::GivenUp(conn)),
                        });
                        let message =
                            outcome.unwrap_or_else(|error| ConnectionEvent::Closed(conn, error.to_string()));
                        let _ = input.send(message).await;
                    });
                    let attempt = ConnectAttempt { task: task.abort_handle(), give_up: Some(give_up) };
                    self.connecting.insert(conn, attempt);
                }
                SocketRequest::GiveUp { conn } => {
                    let attempt = self.connecting.get_mut(&conn);
                    if let Some(give_up) = attempt.and_then(|attempt| attempt.give_up.take()) {
                        // An attempt that has just ended reports that itself.
                        let _ = give_up.send(());
                    }
                }
                SocketRequest::Close { conn, last } => {
                    if let Some(attempt) = self.connecting.remove(&conn) {
                        attempt.task.abort();
                    }
                    if let Some(connection) = self.connections.remove(&conn) {
                        self.closing.push_back(connection.close(last));
                        self.drop_closed();
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
        self.core.take_output_pending()
    }

    fn drop_closed(&mut self) {
        while self
            .closing
            .front()
            .is_some_and(|writer| writer.is_finished() || self.closing.len() > MAX_CLOSING_CONNECTIONS)
        {
            if let Some(writer) = self.closing.pop_front() {
                writer.abort();
            }
        }
    }
}

/// Returns whether creating a socket failed because the kernel was booted without IPv6.
fn is_without_ipv6(error: &io::Error) -> bool {
    use nix::errno::Errno::{EADDRNOTAVAIL, EAFNOSUPPORT};
    error.raw_os_error().is_some_and(|code| code == EAFNOSUPPORT as i32 || code == EADDRNOTAVAIL as i32)
}

async fn accept(listener: Arc<TcpListener>, input: mpsc::Sender<ConnectionEvent>) {
    loop {
        let accepted = listener.accept().await.and_then(|(stream, remote)| {
            let local = stream.local_addr()?;
            Ok(ConnectionEvent::Accepted(stream, local, remote))
        });
        match accepted {
            Ok(message) => {
                if input.send(message).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                warn!(%error, "cannot accept a BGP connection; the next attempt follows in 100 ms");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
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
