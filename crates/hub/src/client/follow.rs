//! The client task: follows one hub after the other and forwards the replica's events to the node.

use super::HubClientOptions;
use crate::frame_reader::{FrameReadError, FrameReader};
use crate::protocol::{ClientMessage, HubMessage, MAX_HUB_FRAME_BYTES, ProtocolError, find_range_class};
use crate::replica::HubReplica;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tortie_model::{FeedEvent, KeyRange};
use tortie_store::{Backoff, StoreLimits, is_guarded};
use tortie_sync::Feed;

/// Capacity of the event channel. When the consumer is slow and the channel is full, the client stops reading from
/// the hub.
const EVENT_QUEUE_LENGTH: usize = 1024;
/// Initial capacity of the receive buffer.
const HUB_READ_BUFFER_BYTES: usize = 16 << 10;
/// Delay before the next hub is asked after a snapshot was rejected because most known objects are missing from it.
const SNAPSHOT_DISTRUST_DELAY: Duration = Duration::from_secs(5);
/// Upper bound of the random reconnect delay, so that the clients of a hub that ended do not reach the others all at
/// once.
const MAX_RECONNECT_JITTER: Duration = Duration::from_millis(200);

/// Follows the ranges on any available hub until the feed is dropped.
pub fn follow(options: HubClientOptions, ranges: Vec<KeyRange>) -> Feed {
    let (sender, feed) = mpsc::channel(EVENT_QUEUE_LENGTH);
    let mut wanted: Vec<String> = ranges.iter().filter_map(find_range_class).map(str::to_owned).collect();
    wanted.sort();
    wanted.dedup();
    let mut replica = HubReplica::new(&options.node, wanted);
    let guarded = ranges.iter().filter(|range| is_guarded(range)).filter_map(find_range_class);
    let grace = StoreLimits::from_environment().absence_grace;
    let max_rejections = grace.as_millis().div_ceil(SNAPSHOT_DISTRUST_DELAY.as_millis());
    replica.set_snapshot_check(
        guarded.map(str::to_owned).collect(),
        u32::try_from(max_rejections).unwrap_or(u32::MAX),
    );
    let follower = HubFollower { options, ranges, replica, sender };
    tokio::spawn(follower.run());
    feed
}

struct HubFollower {
    options: HubClientOptions,
    ranges: Vec<KeyRange>,
    replica: HubReplica,
    sender: mpsc::Sender<FeedEvent>,
}

/// Reason for the end of a connection.
#[derive(Debug, thiserror::Error)]
enum HubConnectionError {
    /// The consumer dropped the feed.
    #[error("the consumer dropped the feed")]
    Unwanted,
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Read(#[from] FrameReadError),
    #[error("it violates the hub protocol: {0}")]
    Protocol(#[from] ProtocolError),
    #[error("{0}")]
    Left(String),
    #[error("its snapshot was rejected: {0}")]
    Distrusted(String),
    #[error("no response in {} s", .0.as_secs())]
    Silent(Duration),
}

/// Outcome of one round over the known hubs.
enum FollowRound {
    /// The consumer dropped the feed.
    Unwanted,
    /// A hub served the client until the connection ended.
    Served,
    /// A hub sent a snapshot that lacks most known objects.
    Distrusted(String),
    Failed(String),
}

impl HubFollower {
    async fn run(mut self) {
        let mut backoff = Backoff::default();
        let mut lost = None;
        loop {
            let round = match self.options.hubs.addresses(lost).await {
                Ok(addresses) => self.try_hubs(addresses, &mut lost).await,
                Err(error) => FollowRound::Failed(error.to_string()),
            };
            let (reason, delay) = match round {
                FollowRound::Unwanted => return,
                FollowRound::Served => {
                    backoff.reset();
                    tokio::time::sleep(MAX_RECONNECT_JITTER.mul_f64(rand::random_range(0.0..=1.0))).await;
                    continue;
                }
                FollowRound::Distrusted(reason) => (reason, SNAPSHOT_DISTRUST_DELAY),
                FollowRound::Failed(reason) => (reason, backoff.pause()),
            };
            if let Some(event) = self.replica.record_unreachable(&reason)
                && self.sender.send(event).await.is_err()
            {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = self.sender.closed() => return,
            }
        }
    }

    /// Follows the first hub that serves this client. Sets `lost` to it when its connection has ended.
    async fn try_hubs(&mut self, addresses: Vec<SocketAddr>, lost: &mut Option<SocketAddr>) -> FollowRound {
        let mut reason = "there is no hub".to_owned();
        for address in addresses {
            let mut served = false;
            let ended = self.connect_and_follow(address, &mut served).await;
            if let HubConnectionError::Unwanted = ended {
                return FollowRound::Unwanted;
            }
            if let HubConnectionError::Distrusted(_) = ended {
                tracing::error!(hub = %address, reason = %ended, "the hub may read the wrong datastore");
                *lost = Some(address);
                return FollowRound::Distrusted(format!("hub {address}: {ended}"));
            }
            if served {
                tracing::info!(hub = %address, reason = %ended, "lost the hub; connecting to another");
                *lost = Some(address);
                return FollowRound::Served;
            }
            tracing::debug!(hub = %address, reason = %ended, "cannot use the hub; trying the next");
            reason = format!("hub {address}: {ended}");
        }
        FollowRound::Failed(reason)
    }

    /// Connects to one hub and follows it. Sets `served` once the hub has sent a message.
    async fn connect_and_follow(&mut self, address: SocketAddr, served: &mut bool) -> HubConnectionError {
        let dial = self.options.dial;
        let stream = match timeout(dial, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return error.into(),
            Err(_) => return HubConnectionError::Silent(dial),
        };
        let _ = stream.set_nodelay(true);
        let Err(ended) = match self.options.tls.clone() {
            None => self.follow(stream, address, served).await,
            Some(tls) => match timeout(dial, tls.connect(stream, address)).await {
                Ok(Ok(stream)) => self.follow(stream, address, served).await,
                Ok(Err(error)) => return error.into(),
                Err(_) => return HubConnectionError::Silent(dial),
            },
        };
        ended
    }

    async fn follow(
        &mut self,
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
        address: SocketAddr,
        served: &mut bool,
    ) -> Result<Infallible, HubConnectionError> {
        let mut reader = FrameReader::new(MAX_HUB_FRAME_BYTES, HUB_READ_BUFFER_BYTES);
        let hello = self.replica.hello();
        self.send(&mut stream, hello).await?;
        let sender = self.sender.clone();
        loop {
            let frame = tokio::select! {
                frame = timeout(self.options.read, reader.next(&mut stream)) => frame,
                () = sender.closed() => return Err(HubConnectionError::Unwanted),
            };
            let frame = frame.map_err(|_| HubConnectionError::Silent(self.options.read))??;
            let reaction = self.replica.receive(HubMessage::decode(frame)?)?;
            if let Some(reason) = reaction.rejection {
                return Err(HubConnectionError::Distrusted(reason));
            }
            if let Some(reason) = reaction.disconnect {
                return Err(HubConnectionError::Left(reason));
            }
            if !std::mem::replace(served, true) {
                tracing::info!(hub = %address, "following the hub");
                if let Some(tls) = &self.options.tls {
                    tls.set_accepted().await;
                }
            }
            if let Some(reply) = reaction.reply {
                self.send(&mut stream, reply).await?;
            }
            for event in reaction.events {
                if self.wants(&event) && sender.send(event).await.is_err() {
                    return Err(HubConnectionError::Unwanted);
                }
            }
        }
    }

    async fn send(
        &self,
        stream: &mut (impl AsyncWrite + Unpin),
        message: ClientMessage,
    ) -> Result<(), HubConnectionError> {
        let frame = message.frame();
        let sent = timeout(self.options.write, async {
            stream.write_all(&frame).await?;
            stream.flush().await
        });
        Ok(sent.await.map_err(|_| HubConnectionError::Silent(self.options.write))??)
    }

    /// Returns whether the event belongs to a subscribed range; a hub sends everything that any node may need.
    fn wants(&self, event: &FeedEvent) -> bool {
        match event {
            FeedEvent::Put { key, .. }
            | FeedEvent::Delete { key, .. }
            | FeedEvent::Unreadable { key, .. } => self.ranges.iter().any(|range| range.contains(key)),
            FeedEvent::InSync | FeedEvent::ConnectionLost { .. } | FeedEvent::ConnectionBack { .. } => true,
        }
    }
}
