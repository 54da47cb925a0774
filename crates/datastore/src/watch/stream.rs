//! The watches of one client: receives requests, sends frames, and catches up watches that are behind.

use super::filter::WatchFilter;
use super::frame::WatchFrame;
use super::hub::{LiveWatchId, MAX_FRAGMENT_BYTES, WatchHub};
use super::queue::{ClientDisconnected, FramePermit, WatchFrameReceiver, WatchFrameSender, queue};
use super::replay::{ReplayPart, replay};
use crate::key_span::KeySpan;
use crate::rejection::RequestRejection;
use crate::storage_fault::StorageFault;
use futures::{Stream, StreamExt};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tonic::Status;
use tortie_etcd_proto::etcdserverpb::WatchCreateRequest;
use tortie_etcd_proto::etcdserverpb::WatchRequest;
use tortie_etcd_proto::etcdserverpb::watch_request::RequestUnion;

/// Maximum number of watches on one stream, and of watches that are behind.
const MAX_WATCHES_PER_STREAM: usize = 20_000;
/// Interval of progress notifications for an idle watch that requested them, if the revision has advanced.
/// kube-apiserver needs them well within its compaction interval; otherwise its cached revision for an idle resource
/// type would fall before the start of the history.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
/// The watch ID of responses that concern no watch, or all of them.
const NO_WATCH_ID: i64 = -1;

/// The watch permissions of the client of a stream, which may change while the stream is open.
pub trait WatchAccess: Send + Sync {
    /// Returns a number that differs after a change; `None` if the client can no longer be identified.
    fn version(&self) -> Option<u64>;
    fn may_watch(&self, span: &KeySpan) -> bool;
}

/// The sending end of a stream, shared with the hub.
pub struct StreamOutbox {
    frames: WatchFrameSender,
    lagging: Mutex<VecDeque<LaggingWatch>>,
    wake: Notify,
}

/// A watch that must read the changes since revision `next` from disk.
pub struct LaggingWatch {
    pub interest: WatchFilter,
    pub next: i64,
}

impl StreamOutbox {
    /// Sends the frame if there is room. Returns whether it was sent.
    pub fn offer(&self, frame: WatchFrame) -> bool {
        self.frames.offer(frame)
    }

    pub fn fell_behind(&self, lagging: LaggingWatch) {
        self.lagging().push_back(lagging);
        self.wake.notify_one();
    }

    fn lagging(&self) -> MutexGuard<'_, VecDeque<LaggingWatch>> {
        self.lagging.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct StreamWatches {
    hub: Arc<WatchHub>,
    outbox: Arc<StreamOutbox>,
    access: Box<dyn WatchAccess>,
    /// The version of the permissions with which all watches were checked.
    access_version: Mutex<Option<u64>>,
    table: Mutex<WatchTable>,
    /// Whether a progress request arrived while a watch was behind; it is answered when none is.
    progress_requested: AtomicBool,
}

#[derive(Default)]
struct WatchTable {
    by_id: HashMap<i64, StreamWatch>,
    next_id: i64,
    next_serial: u64,
}

struct StreamWatch {
    /// Distinguishes a watch from an earlier one with the same ID.
    serial: u64,
    /// Set while the watch is live; it may have fallen behind since.
    live_id: Option<LiveWatchId>,
    span: KeySpan,
}

/// Serves one stream until the client or the server ends it.
pub fn serve<S>(
    hub: Arc<WatchHub>,
    inbound: S,
    access: impl WatchAccess + 'static,
    stop: watch::Receiver<bool>,
) -> WatchFrameReceiver
where
    S: Stream<Item = Result<WatchRequest, Status>> + Send + Unpin + 'static,
{
    let (frames, receiver) = queue(hub.waiting().clone());
    let outbox = Arc::new(StreamOutbox { frames, lagging: Mutex::default(), wake: Notify::new() });
    let watches = StreamWatches {
        hub,
        outbox,
        access_version: Mutex::new(access.version()),
        access: Box::new(access),
        table: Mutex::default(),
        progress_requested: AtomicBool::new(false),
    };
    tokio::spawn(async move {
        tokio::select! {
            _ = watches.answer(inbound) => {}
            _ = watches.catch_up() => {}
            () = stopped(stop) => {}
        }
        watches.leave_all();
    });
    receiver
}

async fn stopped(mut stop: watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

impl StreamWatches {
    /// Handles the requests of the client until it disconnects.
    async fn answer<S>(&self, mut inbound: S) -> Result<(), ClientDisconnected>
    where
        S: Stream<Item = Result<WatchRequest, Status>> + Unpin,
    {
        let mut progress = tokio::time::interval(PROGRESS_INTERVAL);
        progress.reset();
        loop {
            let request = tokio::select! {
                request = inbound.next() => request,
                _ = progress.tick() => {
                    self.end_unpermitted().await?;
                    self.hub.send_progress_to_idle(&self.live_ids());
                    continue;
                }
            };
            let Some(Ok(WatchRequest { request_union })) = request else { return Err(ClientDisconnected) };
            match request_union {
                Some(RequestUnion::CreateRequest(create)) => self.create(&create).await?,
                Some(RequestUnion::CancelRequest(cancel)) => self.cancel(cancel.watch_id).await?,
                Some(RequestUnion::ProgressRequest(_)) => {
                    self.progress_requested.store(true, Ordering::Relaxed);
                    self.send_progress().await?;
                }
                None => {}
            }
        }
    }

    async fn create(&self, request: &WatchCreateRequest) -> Result<(), ClientDisconnected> {
        let permit = self.permit().await?;
        let mut table = self.table();
        let chosen_id = table.choose_id(request.watch_id);
        let id = chosen_id.unwrap_or(NO_WATCH_ID);
        let serial = table.next_serial;
        let interest = WatchFilter::new(id, serial, request);
        let rejection = if !self.access.may_watch(&interest.span) {
            Some(RequestRejection::PERMISSION_DENIED.text)
        } else if interest.span.bounds().is_none() {
            Some("mvcc: watcher range is empty")
        } else if table.by_id.len() >= MAX_WATCHES_PER_STREAM
            || self.outbox.lagging().len() >= MAX_WATCHES_PER_STREAM
        {
            Some("etcdserver: too many watches on this stream")
        } else if chosen_id.is_none() {
            Some("mvcc: duplicate watch ID provided on the WatchStream")
        } else {
            None
        };
        if let Some(cancel_reason) = rejection {
            let revision = self.hub.latest().get().state.revision;
            let frame = WatchFrame {
                revision,
                watch_id: NO_WATCH_ID,
                created: true,
                canceled: true,
                cancel_reason,
                ..WatchFrame::default()
            };
            permit.send(frame);
            return Ok(());
        }
        table.next_serial += 1;
        let start = Some(request.start_revision).filter(|start| *start != 0);
        let live_id = self.hub.join(&interest, &self.outbox, start, |revision| {
            permit.send(WatchFrame { revision, watch_id: id, created: true, ..WatchFrame::default() });
        });
        table.by_id.insert(id, StreamWatch { serial, live_id, span: interest.span.clone() });
        drop(table);
        if live_id.is_none() {
            self.outbox.fell_behind(LaggingWatch { interest, next: request.start_revision });
        }
        Ok(())
    }

    async fn cancel(&self, id: i64) -> Result<(), ClientDisconnected> {
        let permit = self.permit().await?;
        let mut table = self.table();
        let Some(watch) = table.by_id.remove(&id) else { return Ok(()) };
        if let Some(live_id) = watch.live_id {
            self.hub.leave(live_id);
        }
        let revision = self.hub.latest().get().state.revision;
        permit.send(WatchFrame { revision, watch_id: id, canceled: true, ..WatchFrame::default() });
        Ok(())
    }

    /// Cancels the watches whose keys the client may no longer read. Checks them only after users or permissions have
    /// changed; identifying the client also keeps its token alive while the stream is open.
    async fn end_unpermitted(&self) -> Result<(), ClientDisconnected> {
        let version = self.access.version();
        {
            let mut checked = self.access_version.lock().unwrap_or_else(PoisonError::into_inner);
            if version.is_some() && *checked == version {
                return Ok(());
            }
            *checked = version;
        }
        // First stop the events of all these watches, then notify the client, which may be slow to read.
        let ended: Vec<(i64, StreamWatch)> =
            self.table().by_id.extract_if(|_, watch| !self.access.may_watch(&watch.span)).collect();
        for live_id in ended.iter().filter_map(|(_, watch)| watch.live_id) {
            self.hub.leave(live_id);
        }
        for (watch_id, _) in ended {
            let frame = WatchFrame {
                revision: self.hub.latest().get().state.revision,
                watch_id,
                canceled: true,
                cancel_reason: RequestRejection::PERMISSION_DENIED.text,
                ..WatchFrame::default()
            };
            self.permit().await?.send(frame);
        }
        Ok(())
    }

    /// Answers a progress request, once every watch of the stream is live.
    async fn send_progress(&self) -> Result<(), ClientDisconnected> {
        if !self.progress_requested.load(Ordering::Relaxed) {
            return Ok(());
        }
        let permit = self.permit().await?;
        let _table = self.table();
        self.hub.while_published(|revision| {
            // Checked while nothing is published, so no watch can fall behind in between.
            if self.outbox.lagging().is_empty() && self.progress_requested.swap(false, Ordering::Relaxed) {
                permit.send(WatchFrame { revision, watch_id: NO_WATCH_ID, ..WatchFrame::default() });
            }
        });
        Ok(())
    }

    /// Catches up the watches that are behind, one part each in turn.
    async fn catch_up(&self) -> Result<(), ClientDisconnected> {
        loop {
            // The entry stays in the list while it is processed, because the list indicates that a watch is behind.
            let front = self.outbox.lagging().front().map(|lagging| (lagging.interest.clone(), lagging.next));
            let Some((interest, next)) = front else {
                self.send_progress().await?;
                self.outbox.wake.notified().await;
                continue;
            };
            let still_behind = self.catch_up_step(&interest, next).await?;
            let mut lagging = self.outbox.lagging();
            lagging.pop_front();
            if let Some(next) = still_behind {
                lagging.push_back(LaggingWatch { interest, next });
            }
        }
    }

    /// Sends the next part of the history. Returns where to continue, or `None` if the watch is live or cancelled.
    async fn catch_up_step(
        &self,
        interest: &WatchFilter,
        next: i64,
    ) -> Result<Option<i64>, ClientDisconnected> {
        let snapshot = self.hub.latest().get();
        let compacted = snapshot.state.compacted;
        if next < compacted {
            let frame = WatchFrame {
                watch_id: interest.id,
                canceled: true,
                compact_revision: compacted,
                ..WatchFrame::default()
            };
            // Its ID stays in use until the client cancels it, which is answered once more, as in etcd.
            self.send(interest, frame).await?;
            return Ok(None);
        }
        // Wait for a client that does not read; nothing is lost, the watch continues from here.
        self.outbox.frames.drained().await?;
        let wanted = interest.clone();
        let read = tokio::task::spawn_blocking(move || replay(&snapshot, &wanted, next)).await;
        let ReplayPart { events, through, too_large } =
            read.unwrap_or(Err(StorageFault::Record)).map_err(|fault| {
                tracing::error!("cannot read the history for a watch: {fault}");
                ClientDisconnected
            })?;
        if too_large {
            tracing::warn!("a watch is cancelled: revision {} is too large for one response", through + 1);
            let cancel_reason = "etcdserver: the changes of one revision are too large for a response";
            let watch_id = interest.id;
            let frame = WatchFrame {
                revision: through,
                watch_id,
                canceled: true,
                cancel_reason,
                ..WatchFrame::default()
            };
            self.send(interest, frame).await?;
            return Ok(None);
        }
        if !events.is_empty() {
            let frame = WatchFrame {
                revision: through,
                watch_id: interest.id,
                events,
                with_previous: interest.with_previous,
                ..WatchFrame::default()
            };
            let frames = if interest.fragment { frame.fragments(MAX_FRAGMENT_BYTES) } else { vec![frame] };
            for frame in frames {
                if !self.send(interest, frame).await? {
                    return Ok(None);
                }
            }
        }
        let next = through + 1;
        let mut table = self.table();
        let Some(watch) = table.find(interest) else { return Ok(None) };
        watch.live_id = self.hub.join(interest, &self.outbox, Some(next), |_| {});
        Ok(if watch.live_id.is_some() { None } else { Some(next) })
    }

    /// Sends unless the watch has been cancelled in the meantime. Returns whether it was sent.
    async fn send(&self, interest: &WatchFilter, frame: WatchFrame) -> Result<bool, ClientDisconnected> {
        let permit = self.permit().await?;
        let mut table = self.table();
        let wanted = table.find(interest).is_some();
        if wanted {
            permit.send(frame);
        }
        Ok(wanted)
    }

    async fn permit(&self) -> Result<FramePermit<'_>, ClientDisconnected> {
        self.outbox.frames.reserve().await
    }

    fn live_ids(&self) -> Vec<LiveWatchId> {
        self.table().by_id.values().filter_map(|watch| watch.live_id).collect()
    }

    fn leave_all(&self) {
        for live_id in self.live_ids() {
            self.hub.leave(live_id);
        }
    }

    fn table(&self) -> MutexGuard<'_, WatchTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WatchTable {
    /// Returns the ID that the client requested, or a free one; `None` if the requested one is in use.
    fn choose_id(&mut self, wanted: i64) -> Option<i64> {
        if wanted != 0 {
            return (!self.by_id.contains_key(&wanted)).then_some(wanted);
        }
        while self.by_id.contains_key(&self.next_id) {
            self.next_id += 1;
        }
        let id = self.next_id;
        self.next_id += 1;
        Some(id)
    }

    fn find(&mut self, interest: &WatchFilter) -> Option<&mut StreamWatch> {
        self.by_id.get_mut(&interest.id).filter(|watch| watch.serial == interest.serial)
    }
}
