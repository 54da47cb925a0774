//! Streams changes as server-sent events. A client that reconnects sends the id of its last event and receives the changes
//! after it, or a `resync` event if the ring no longer has them.

use crate::changes::{ClusterFeed, MissedChanges, RingPosition};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::Stream;
use serde_json::json;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_stream::wrappers::ReceiverStream;

/// Maximum number of streams of all clients.
pub const MAX_STREAMS: usize = 64;
/// Time during which changes are collected into one event.
const COLLECT_DELAY: Duration = Duration::from_millis(250);
/// Interval of comments that keep proxies from closing the connection.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Events that wait for a slow client.
const QUEUED_EVENTS: usize = 4;
/// Objects that are named in one event; more make it a `resync`.
const MAX_NAMED_CHANGES: usize = 200;

/// Renders a stream; the place is free again when the client disconnects.
pub fn render_stream(events: impl Stream<Item = Result<Event, Infallible>> + Send + 'static) -> Response {
    Sse::new(events).keep_alive(KeepAlive::new().interval(KEEPALIVE_INTERVAL)).into_response()
}

/// Streams the changes after a position, or from now on.
pub fn stream_changes(
    feed: Arc<ClusterFeed>,
    resume: Option<RingPosition>,
    permit: OwnedSemaphorePermit,
) -> Response {
    let (sender, receiver) = mpsc::channel(QUEUED_EVENTS);
    tokio::spawn(async move {
        let _permit = permit;
        tokio::select! {
            // The client disconnected.
            () = sender.closed() => {}
            _ = send_changes(&feed, resume, &sender) => {}
        }
    });
    render_stream(ReceiverStream::new(receiver))
}

/// Sends events until the client has disconnected, which is the error.
async fn send_changes(
    feed: &ClusterFeed,
    resume: Option<RingPosition>,
    sender: &mpsc::Sender<Result<Event, Infallible>>,
) -> Result<Infallible, mpsc::error::SendError<Result<Event, Infallible>>> {
    let (mut positions, mut states) = (feed.watch_position(), feed.watch_state());
    let mut position = resume.unwrap_or_else(|| feed.position());
    // The first event gives the client an id from which it can resume.
    let mut is_first = true;
    loop {
        let state = states.borrow_and_update().clone();
        sender.send(Ok(Event::default().event("state").data(json!(state).to_string()))).await?;
        loop {
            positions.mark_unchanged();
            let (missed, end) = feed.since(position);
            position = end;
            if let Some(event) = render_missed(missed, is_first) {
                sender.send(Ok(event.id(end.to_id()))).await?;
            }
            is_first = false;
            tokio::select! {
                _ = states.changed() => break,
                _ = positions.changed() => tokio::time::sleep(COLLECT_DELAY).await,
            }
        }
    }
}

fn render_missed(missed: MissedChanges, is_first: bool) -> Option<Event> {
    match missed {
        MissedChanges::Known(changes) if changes.is_empty() && !is_first => None,
        MissedChanges::Known(changes) if changes.len() <= MAX_NAMED_CHANGES => {
            Some(Event::default().event("changes").data(json!(changes).to_string()))
        }
        MissedChanges::Known(_) | MissedChanges::Unknown => Some(Event::default().event("resync").data("{}")),
    }
}
