//! One client, from its first byte to its last. It costs a small task and no queue; when it is slow, only it waits.

use super::Shared;
use super::buffer_budget::BufferShare;
use super::frame_queue::FrameQueue;
use super::sources::SourceSlot;
use crate::frames::{FrameReader, ReadError};
use crate::protocol::{FromClient, Hello, MOST_FROM_CLIENT, ProtocolError, Refused, from_client, from_hub};
use crate::session::{BUDGET, Next, Opening, Session};
use bytes::{Buf, Bytes};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

/// Room for what a client usually says.
const ROOM: usize = 256;
/// Between looks at whether this hub has caught up with a client.
const LOOK: Duration = Duration::from_millis(20);

/// Why a connection has ended.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    #[error("it has gone")]
    Closed,
    #[error("it was asked to leave")]
    Asked,
    #[error("{0}")]
    Foreign(#[from] ProtocolError),
    #[error("{0}")]
    Untrusted(std::io::Error),
    #[error("it said nothing in time")]
    Silent,
    #[error("{0}")]
    Refused(String),
    #[error("it did not take what was sent in time")]
    Slow,
    #[error("it did not answer in time")]
    Dead,
    #[error("its address has as many clients as one may have (MaxConnectionsPerSource)")]
    Crowded,
    #[error("it does not read, and what is on its way to all clients is as much as may be (MaxBufferBytes)")]
    Evicted,
    #[error("there was no room in time for what it is to be sent (MaxBufferBytes)")]
    NoRoom,
}

impl From<ReadError> for Ended {
    fn from(error: ReadError) -> Ended {
        match error {
            ReadError::Protocol(error) => Ended::Foreign(error),
            ReadError::Io(_) | ReadError::Closed => Ended::Closed,
        }
    }
}

pub async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    shared: &Shared,
    stream: S,
    source: IpAddr,
    stranger: SourceSlot,
) -> Ended {
    let reader = FrameReader::new(MOST_FROM_CLIENT, ROOM);
    let mut client = Client { shared, stream, reader, wake: shared.sequence.subscribe() };
    match client.run(source, stranger).await {
        Ok(never) => match never {},
        Err(ended) => ended,
    }
}

struct Client<'a, S> {
    shared: &'a Shared,
    stream: S,
    reader: FrameReader,
    wake: watch::Receiver<u64>,
}

/// Serving a client never ends well.
enum Never {}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> Client<'a, S> {
    async fn run(&mut self, source: IpAddr, stranger: SourceSlot) -> Result<Never, Ended> {
        let hello = self.greet(stranger).await?;
        let _slot = self.enter(source).await?;
        let mut session = self.open(hello).await?;
        let place = self.shared.clients.enter();
        let (mut heard, began) = (Instant::now(), Instant::now());
        let mut ping = heard + self.ping_pause();
        // Set anew only when it must go off earlier or has gone off: a client that gets changes would start and stop it all the time.
        let mut alarm = pin!(tokio::time::sleep_until(ping));
        // The time of the ping that was not answered yet.
        let mut asked: Option<Instant> = None;
        let mut awaited = None;
        let mut streaming = None;
        // When it was known that there is something for the client.
        let mut woken: Option<Instant> = None;
        loop {
            self.wake.mark_unchanged();
            let looked = Instant::now();
            let followed = session.is_following();
            let (frames, share, next) = self.gather_within_budget(&mut session, &mut ping).await?;
            // While it waited for room, nobody listened to it.
            heard += looked.elapsed();
            if !frames.is_empty() {
                self.shared.metrics.gathered(looked.elapsed());
                match session.is_following() {
                    true if followed => self.shared.metrics.followed(woken.is_some()),
                    false if followed => self.shared.metrics.fell_behind(),
                    _ => {}
                }
            }
            self.write_share(frames, share).await?;
            if let Some(woken) = woken.take_if(|_| matches!(next, Next::Wait)) {
                self.shared.metrics.caught_up(woken.elapsed());
            }
            if session.is_following() && streaming.is_none() {
                self.shared.metrics.snapshot_sent(began.elapsed());
                streaming = Some(self.shared.metrics.streaming());
            }
            // While digests are awaited, the client may take as long as for its first word.
            awaited = match next {
                Next::AwaitDigests => awaited.or(Some(Instant::now() + self.shared.options.handshake)),
                _ => None,
            };
            let idle = matches!(next, Next::Wait | Next::AwaitDigests);
            let limit = (heard + self.shared.options.pong)
                .min(awaited.unwrap_or(Instant::now() + self.shared.options.pong));
            let due = ping.min(limit);
            if alarm.is_elapsed() || due < alarm.deadline() {
                alarm.as_mut().reset(due);
            }
            tokio::select! {
                frame = self.reader.next(&mut self.stream) => {
                    heard = Instant::now();
                    match FromClient::read(frame?)? {
                        from_client::What::Pong(()) => {
                            if let Some(asked) = asked.take() {
                                self.shared.metrics.answered(asked.elapsed());
                            }
                        }
                        from_client::What::Digests(digests) => {
                            let begin = session.compare(&digests.sums()?, &self.shared.ledger())?;
                            self.write(vec![begin]).await?;
                        }
                        from_client::What::Hello(_) => return Err(ProtocolError::Unexpected("a second hello").into()),
                    }
                }
                _ = self.wake.changed(), if matches!(next, Next::Wait) => woken = Some(Instant::now()),
                () = std::future::ready(()), if !idle => {}
                () = &mut alarm => {
                    let now = Instant::now();
                    if now >= limit {
                        return Err(Ended::Dead);
                    }
                    if now >= ping {
                        asked.get_or_insert(now);
                        ping = now + self.ping_pause();
                        self.write(vec![from_hub::What::Ping(()).frame()]).await?;
                    }
                }
                () = place.asked() => {
                    self.write(vec![from_hub::What::Leave(()).frame()]).await?;
                    // It has been told; whether it hears of the end too makes no difference.
                    let _ = timeout(self.shared.options.handshake, self.stream.shutdown()).await;
                    return Err(Ended::Asked);
                }
            }
        }
    }

    /// Not all at the same moment.
    fn ping_pause(&self) -> Duration {
        self.shared.options.ping.mul_f64(rand::random_range(0.9..=1.1))
    }

    /// Waits for the first word of the client, for which it counts as a stranger.
    async fn greet(&mut self, stranger: SourceSlot) -> Result<Hello, Ended> {
        let deadline = Instant::now() + self.shared.options.handshake;
        let frame =
            timeout_at(deadline, self.reader.next(&mut self.stream)).await.map_err(|_| Ended::Silent)??;
        let from_client::What::Hello(hello) = FromClient::read(frame)? else {
            return Err(ProtocolError::Unexpected("no hello at the beginning").into());
        };
        drop(stranger);
        Ok(hello)
    }

    /// Counts the client among those of its source. One too many is sent away with the reason, so that it goes to another hub.
    async fn enter(&mut self, source: IpAddr) -> Result<SourceSlot, Ended> {
        if let Some(slot) = self.shared.sources.enter(source) {
            return Ok(slot);
        }
        self.refuse(Ended::Crowded.to_string()).await?;
        Err(Ended::Crowded)
    }

    async fn refuse(&mut self, reason: String) -> Result<(), Ended> {
        let limit = self.shared.options.handshake;
        let refused = self.write(vec![from_hub::What::Refused(Refused { reason }).frame()]);
        timeout(limit, refused).await.map_err(|_| Ended::Slow)?
    }

    async fn open(&mut self, hello: Hello) -> Result<Session, Ended> {
        let patience = Instant::now() + self.shared.options.catch_up;
        loop {
            let opening = match self.shared.draining.load(Ordering::Relaxed) {
                true => Opening::Refused("this hub is about to end".to_owned()),
                false => Session::open(&hello, &self.shared.ledger(), Instant::now() >= patience),
            };
            match opening {
                Opening::Served { session, first } => {
                    self.shared.metrics.opened(&session);
                    self.write(first).await?;
                    tracing::debug!(node = hello.node, "a client is served");
                    return Ok(session);
                }
                Opening::Behind => tokio::time::sleep(LOOK).await,
                Opening::Refused(reason) => {
                    self.refuse(reason.clone()).await?;
                    return Err(Ended::Refused(format!("{}: {reason}", hello.node)));
                }
            }
        }
    }

    /// What there is to send now, and the client's share of the budget for it. While there is no room, nothing is held for the
    /// client: the session stays where it was.
    async fn gather_within_budget(
        &mut self,
        session: &mut Session,
        ping: &mut Instant,
    ) -> Result<(Vec<Bytes>, Option<BufferShare<'a>>, Next), Ended> {
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
                    return Err(Ended::NoRoom);
                }
                // It would take silence for the end of the hub.
                *ping = now + self.ping_pause();
                self.write(vec![from_hub::What::Ping(()).frame()]).await?;
            }
        }
    }

    /// What there is to send now, up to about the client's part of the budget, and what comes after it.
    fn gather(&self, session: &mut Session) -> (Vec<Bytes>, Next) {
        let limit = self.shared.budget.share_of(self.shared.clients.len(), BUDGET);
        let (mut frames, mut bytes) = (Vec::new(), 0);
        loop {
            let next = session.next(&self.shared.ledger());
            let from = frames.len();
            match next {
                Next::Wait | Next::AwaitDigests => return (frames, next),
                Next::Send(more) => frames.extend(more),
                // Encoded here, when the ledger is free for others.
                Next::SendBucket(bucket) => {
                    let (more, encoded) = bucket.frames();
                    self.shared.metrics.bucket(&bucket, &more, encoded);
                    frames.extend(more.iter().cloned());
                }
            }
            bytes += frames[from..].iter().map(Bytes::len).sum::<usize>();
            if bytes >= limit {
                return (frames, Next::Send(Vec::new()));
            }
        }
    }

    async fn write_share(&mut self, frames: Vec<Bytes>, share: Option<BufferShare<'_>>) -> Result<(), Ended> {
        let Some(share) = share else { return Ok(()) };
        tokio::select! {
            written = self.write_noting(frames, || share.note_progress()) => written,
            () = share.evicted() => Err(Ended::Evicted),
        }
    }

    async fn write(&mut self, frames: Vec<Bytes>) -> Result<(), Ended> {
        self.write_noting(frames, || {}).await
    }

    /// `note_progress` is called whenever the client took something.
    async fn write_noting(&mut self, frames: Vec<Bytes>, note_progress: impl Fn()) -> Result<(), Ended> {
        let mut queue = FrameQueue::new(frames);
        let bytes = queue.remaining();
        let began = Instant::now();
        let written = async {
            while queue.has_remaining() {
                if self.stream.write_buf(&mut queue).await? == 0 {
                    return Err(std::io::ErrorKind::WriteZero.into());
                }
                note_progress();
            }
            self.stream.flush().await
        };
        let written = timeout(self.shared.options.write, written).await.map_err(|_| Ended::Slow)?;
        written.map_err(|_| Ended::Closed)?;
        self.shared.metrics.written(bytes, began.elapsed());
        Ok(())
    }
}
