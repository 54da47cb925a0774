//! Serves one client connection. A client costs one small task and no queue, and a slow client delays no other.

use super::HubState;
use super::buffer_budget::BufferShare;
use super::frame_queue::FrameQueue;
use super::source_counts::SourceSlot;
use crate::frame_reader::{FrameReadError, FrameReader};
use crate::protocol::{
    ClientMessage, HelloMessage, HubMessage, MAX_CLIENT_FRAME_BYTES, ProtocolError, RefusedMessage,
};
use crate::session::{ClientSession, MAX_SEND_BYTES, SessionOpening, SessionStep};
use bytes::{Buf, Bytes};
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

/// Initial capacity of the receive buffer: enough for usual client messages.
const CLIENT_READ_BUFFER_BYTES: usize = 256;
/// Interval at which the hub checks whether it has caught up with a client.
const CATCH_UP_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Reason for the end of a connection.
#[derive(Debug, thiserror::Error)]
pub enum ClientDisconnect {
    #[error("the client closed the connection")]
    Closed,
    #[error("it was asked to leave")]
    AskedToLeave,
    #[error("{0}")]
    Protocol(#[from] ProtocolError),
    #[error("{0}")]
    Untrusted(std::io::Error),
    #[error("it sent no hello in time")]
    NoHello,
    #[error("{0}")]
    Refused(String),
    #[error("it did not read its data in time")]
    Slow,
    #[error("it did not respond in time")]
    NoResponse,
    #[error("its address has the maximum number of clients (MaxConnectionsPerSource)")]
    TooManyFromSource,
    #[error("it does not read, and the buffers of all clients are full (MaxBufferBytes)")]
    Evicted,
    #[error("no buffer space became free in time for its data (MaxBufferBytes)")]
    NoBufferSpace,
}

impl From<FrameReadError> for ClientDisconnect {
    fn from(error: FrameReadError) -> ClientDisconnect {
        match error {
            FrameReadError::Protocol(error) => ClientDisconnect::Protocol(error),
            FrameReadError::Io(_) | FrameReadError::Closed => ClientDisconnect::Closed,
        }
    }
}

pub async fn serve_client<S: AsyncRead + AsyncWrite + Unpin>(
    shared: &HubState,
    stream: S,
    source: IpAddr,
    handshake_slot: SourceSlot,
) -> ClientDisconnect {
    let reader = FrameReader::new(MAX_CLIENT_FRAME_BYTES, CLIENT_READ_BUFFER_BYTES);
    let mut client = ClientConnection { shared, stream, reader, wake: shared.sequence.subscribe() };
    let Err(ended) = client.run(source, handshake_slot).await;
    ended
}

struct ClientConnection<'a, S> {
    shared: &'a HubState,
    stream: S,
    reader: FrameReader,
    wake: watch::Receiver<u64>,
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> ClientConnection<'a, S> {
    async fn run(
        &mut self,
        source: IpAddr,
        handshake_slot: SourceSlot,
    ) -> Result<Infallible, ClientDisconnect> {
        let hello = self.read_hello(handshake_slot).await?;
        let _slot = self.take_source_slot(source).await?;
        let mut session = self.open_session(hello).await?;
        let registration = self.shared.clients.register();
        let began = Instant::now();
        let mut last_message = began;
        let mut ping = began + self.choose_ping_interval();
        // Reset only when it must fire earlier or has fired: for a client that receives changes it would otherwise be
        // restarted all the time.
        let mut alarm = pin!(tokio::time::sleep_until(ping));
        // Time of the first ping that the client has not answered.
        let mut unanswered_ping: Option<Instant> = None;
        let mut digests_deadline = None;
        let mut streaming = None;
        // Time at which new changes for the client became known.
        let mut woken: Option<Instant> = None;
        loop {
            self.wake.mark_unchanged();
            let gathering_began = Instant::now();
            let followed = session.is_following();
            let (frames, share, next) = self.gather_within_budget(&mut session, &mut ping).await?;
            // Nothing was read from the client while it waited for budget, so that time does not count as silence.
            last_message += gathering_began.elapsed();
            if !frames.is_empty() {
                self.shared.metrics.observe_gather(gathering_began.elapsed());
                if followed && session.is_following() {
                    self.shared.metrics.count_followed(woken.is_some());
                } else if followed {
                    self.shared.metrics.count_fall_behind();
                }
            }
            self.write_share(frames, share).await?;
            if let Some(woken) = woken.take_if(|_| matches!(next, SessionStep::Wait)) {
                self.shared.metrics.observe_catch_up(woken.elapsed());
            }
            if session.is_following() && streaming.is_none() {
                self.shared.metrics.observe_snapshot(began.elapsed());
                streaming = Some(self.shared.metrics.count_streaming());
            }
            // While digests are awaited, the client has as much time as for its hello.
            digests_deadline = match next {
                SessionStep::AwaitDigests => {
                    digests_deadline.or(Some(Instant::now() + self.shared.options.handshake))
                }
                _ => None,
            };
            let idle = matches!(next, SessionStep::Wait | SessionStep::AwaitDigests);
            let limit = (last_message + self.shared.options.pong)
                .min(digests_deadline.unwrap_or(Instant::now() + self.shared.options.pong));
            let due = ping.min(limit);
            if alarm.is_elapsed() || due < alarm.deadline() {
                alarm.as_mut().reset(due);
            }
            tokio::select! {
                frame = self.reader.next(&mut self.stream) => {
                    last_message = Instant::now();
                    self.handle_message(frame?, &mut session, &mut unanswered_ping).await?;
                }
                _ = self.wake.changed(), if matches!(next, SessionStep::Wait) => woken = Some(Instant::now()),
                () = std::future::ready(()), if !idle => {}
                () = &mut alarm => {
                    let now = Instant::now();
                    if now >= limit {
                        return Err(ClientDisconnect::NoResponse);
                    }
                    if now >= ping {
                        unanswered_ping.get_or_insert(now);
                        ping = now + self.choose_ping_interval();
                        self.write(vec![HubMessage::Ping(()).frame()]).await?;
                    }
                }
                () = registration.wait_until_asked() => return Err(self.send_leave().await),
            }
        }
    }

    /// Handles a message of the client after its hello. `unanswered_ping` is the time of the first ping without a
    /// response.
    async fn handle_message(
        &mut self,
        frame: Bytes,
        session: &mut ClientSession,
        unanswered_ping: &mut Option<Instant>,
    ) -> Result<(), ClientDisconnect> {
        match ClientMessage::decode(frame)? {
            ClientMessage::Pong(()) => {
                if let Some(sent) = unanswered_ping.take() {
                    self.shared.metrics.observe_ping(sent.elapsed());
                }
                Ok(())
            }
            ClientMessage::Digests(digests) => {
                let begin = session.compare(&digests.sums()?, &self.shared.ledger())?;
                self.write(vec![begin]).await
            }
            ClientMessage::Hello(_) => Err(ProtocolError::Unexpected("a second hello").into()),
        }
    }

    /// Asks the client to connect to another hub. Returns the reason for the end of the connection.
    async fn send_leave(&mut self) -> ClientDisconnect {
        if let Err(error) = self.write(vec![HubMessage::Leave(()).frame()]).await {
            return error;
        }
        // The message has been sent; a failed shutdown of the stream makes no difference.
        let _ = timeout(self.shared.options.handshake, self.stream.shutdown()).await;
        ClientDisconnect::AskedToLeave
    }

    /// Returns the ping interval with jitter, so that clients are not pinged all at once.
    fn choose_ping_interval(&self) -> Duration {
        self.shared.options.ping.mul_f64(rand::random_range(0.9..=1.1))
    }

    /// Waits for the client's hello. Until then, the connection counts against the handshake limits.
    async fn read_hello(&mut self, handshake_slot: SourceSlot) -> Result<HelloMessage, ClientDisconnect> {
        let deadline = Instant::now() + self.shared.options.handshake;
        let frame = timeout_at(deadline, self.reader.next(&mut self.stream))
            .await
            .map_err(|_| ClientDisconnect::NoHello)??;
        let ClientMessage::Hello(hello) = ClientMessage::decode(frame)? else {
            return Err(ProtocolError::Unexpected("no hello at the beginning").into());
        };
        drop(handshake_slot);
        Ok(hello)
    }

    /// Counts the client against the limit of its source address. Beyond the limit, it is rejected with the reason,
    /// so that it connects to another hub.
    async fn take_source_slot(&mut self, source: IpAddr) -> Result<SourceSlot, ClientDisconnect> {
        if let Some(slot) = self.shared.sources.count(source) {
            return Ok(slot);
        }
        self.refuse(ClientDisconnect::TooManyFromSource.to_string()).await?;
        Err(ClientDisconnect::TooManyFromSource)
    }

    async fn refuse(&mut self, reason: String) -> Result<(), ClientDisconnect> {
        let limit = self.shared.options.handshake;
        let refused = self.write(vec![HubMessage::Refused(RefusedMessage { reason }).frame()]);
        timeout(limit, refused).await.map_err(|_| ClientDisconnect::Slow)?
    }

    async fn open_session(&mut self, hello: HelloMessage) -> Result<ClientSession, ClientDisconnect> {
        let deadline = Instant::now() + self.shared.options.catch_up;
        loop {
            let opening = if self.shared.draining.load(Ordering::Relaxed) {
                SessionOpening::Refused("this hub is shutting down".to_owned())
            } else {
                ClientSession::open(&hello, &self.shared.ledger(), Instant::now() >= deadline)
            };
            match opening {
                SessionOpening::Served { session, first } => {
                    self.shared.metrics.count_opening(&session);
                    self.write(first).await?;
                    tracing::debug!(node = hello.node, "a client is served");
                    return Ok(session);
                }
                SessionOpening::Behind => tokio::time::sleep(CATCH_UP_CHECK_INTERVAL).await,
                SessionOpening::Refused(reason) => {
                    self.refuse(reason.clone()).await?;
                    return Err(ClientDisconnect::Refused(format!("{}: {reason}", hello.node)));
                }
            }
        }
    }

    /// Returns the next frames to send and the client's share of the budget for them. While the budget has no room,
    /// no frames are held for the client: the session is reset to its previous position.
    async fn gather_within_budget(
        &mut self,
        session: &mut ClientSession,
        ping: &mut Instant,
    ) -> Result<(Vec<Bytes>, Option<BufferShare<'a>>, SessionStep), ClientDisconnect> {
        let shared = self.shared;
        let deadline = Instant::now() + shared.options.write;
        loop {
            let before = session.clone();
            let (frames, next) = self.gather(session);
            if frames.is_empty() {
                return Ok((frames, None, next));
            }
            let bytes = frames.iter().map(Bytes::len).sum();
            if let Some(share) = shared.budget.reserve(bytes, &shared.metrics) {
                return Ok((frames, Some(share), next));
            }
            *session = before;
            drop(frames);
            while timeout_at(deadline.min(*ping), shared.budget.make_room(bytes)).await.is_err() {
                let now = Instant::now();
                if now >= deadline {
                    return Err(ClientDisconnect::NoBufferSpace);
                }
                // Without pings, the client would conclude that the hub is dead.
                *ping = now + self.choose_ping_interval();
                self.write(vec![HubMessage::Ping(()).frame()]).await?;
            }
        }
    }

    /// Returns the frames to send now, up to about the client's share of the budget, and the step that follows.
    fn gather(&self, session: &mut ClientSession) -> (Vec<Bytes>, SessionStep) {
        let limit = self.shared.budget.bytes_per_client(self.shared.clients.len(), MAX_SEND_BYTES);
        let mut frames = Vec::new();
        let mut bytes = 0;
        loop {
            let next = session.next(&self.shared.ledger());
            let from = frames.len();
            match next {
                SessionStep::Wait | SessionStep::AwaitDigests => return (frames, next),
                SessionStep::Send(more) => frames.extend(more),
                // Encoded here, after the lock of the ledger has been released.
                SessionStep::SendBucket(bucket) => {
                    let (more, encoded) = bucket.frames();
                    self.shared.metrics.count_bucket(&bucket, &more, encoded);
                    frames.extend(more.iter().cloned());
                }
            }
            bytes += frames[from..].iter().map(Bytes::len).sum::<usize>();
            if bytes >= limit {
                return (frames, SessionStep::Send(Vec::new()));
            }
        }
    }

    async fn write_share(
        &mut self,
        frames: Vec<Bytes>,
        share: Option<BufferShare<'_>>,
    ) -> Result<(), ClientDisconnect> {
        let Some(share) = share else { return Ok(()) };
        tokio::select! {
            written = self.write_reporting(frames, || share.record_progress()) => written,
            () = share.evicted() => Err(ClientDisconnect::Evicted),
        }
    }

    async fn write(&mut self, frames: Vec<Bytes>) -> Result<(), ClientDisconnect> {
        self.write_reporting(frames, || {}).await
    }

    /// Writes the frames and calls `report_progress` whenever the client has read something.
    async fn write_reporting(
        &mut self,
        frames: Vec<Bytes>,
        report_progress: impl Fn(),
    ) -> Result<(), ClientDisconnect> {
        let mut queue = FrameQueue::new(frames);
        let bytes = queue.remaining();
        let began = Instant::now();
        let written = async {
            while queue.has_remaining() {
                if self.stream.write_buf(&mut queue).await? == 0 {
                    return Err(std::io::ErrorKind::WriteZero.into());
                }
                report_progress();
            }
            self.stream.flush().await
        };
        let written =
            timeout(self.shared.options.write, written).await.map_err(|_| ClientDisconnect::Slow)?;
        written.map_err(|_| ClientDisconnect::Closed)?;
        self.shared.metrics.observe_write(bytes, began.elapsed());
        Ok(())
    }
}
