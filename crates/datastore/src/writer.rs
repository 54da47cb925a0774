//! The single writer: takes all queued requests, applies them in order, makes them durable with one commit, then
//! answers them and publishes the changes to the watchers. The next group accumulates while the disk is busy.

use super::core::{StoreCore, WriteRequest, WriteResponse};
use super::lessor::Lessor;
use super::rejection::RequestRejection;
use super::storage_fault::StorageFault;
use super::watch::WatchHub;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tonic::Status;

/// Maximum number of queued requests; beyond it the senders wait.
const WRITE_QUEUE_LENGTH: usize = 4096;
/// Maximum number of requests in one commit.
const MAX_WRITES_PER_COMMIT: usize = 1024;

/// Maximum size of queued requests, counted in units; beyond it the senders wait.
const QUEUE_UNIT_BYTES: usize = 1024;
const MAX_QUEUED_UNITS: u32 = 64 * 1024;

type ReplySender<T> = oneshot::Sender<Result<T, RequestRejection>>;

enum WriterTask {
    Write {
        write: WriteRequest,
        reply: ReplySender<WriteResponse>,
        _room: OwnedSemaphorePermit,
    },
    /// Compacts, and answers when the old versions have been removed from the tables.
    CompactPhysically {
        revision: i64,
        reply: ReplySender<WriteResponse>,
    },
    Defragment {
        reply: oneshot::Sender<Result<(), Status>>,
    },
    Size {
        reply: ReplySender<u64>,
    },
    /// Completes the preceding tasks, then ends.
    Stop,
}

/// Handle that sends requests to the writer.
#[derive(Clone)]
pub struct StoreWriter {
    tasks: mpsc::Sender<WriterTask>,
    room: Arc<Semaphore>,
}

impl StoreWriter {
    pub async fn write(&self, write: WriteRequest) -> Result<WriteResponse, RequestRejection> {
        let weight = u32::try_from(write.weight() / QUEUE_UNIT_BYTES).unwrap_or(u32::MAX).saturating_add(1);
        let room = self.room.clone().acquire_many_owned(weight.min(MAX_QUEUED_UNITS)).await;
        let _room = room.map_err(|_| RequestRejection::STOPPED)?;
        self.request(|reply| WriterTask::Write { write, reply, _room }).await
    }

    pub async fn stop(&self) {
        let _ = self.tasks.send(WriterTask::Stop).await;
    }

    pub async fn compact_physically(&self, revision: i64) -> Result<WriteResponse, RequestRejection> {
        self.request(|reply| WriterTask::CompactPhysically { revision, reply }).await
    }

    pub async fn defragment(&self) -> Result<(), Status> {
        let (reply, answer) = oneshot::channel();
        self.tasks.send(WriterTask::Defragment { reply }).await.map_err(|_| RequestRejection::STOPPED)?;
        answer.await.unwrap_or(Err(RequestRejection::STORAGE_FAILED.into()))
    }

    pub async fn size(&self) -> Result<u64, RequestRejection> {
        self.request(|reply| WriterTask::Size { reply }).await
    }

    async fn request<T>(
        &self,
        task: impl FnOnce(ReplySender<T>) -> WriterTask,
    ) -> Result<T, RequestRejection> {
        let (reply, answer) = oneshot::channel();
        self.tasks.send(task(reply)).await.map_err(|_| RequestRejection::STOPPED)?;
        // The fate of the request is unknown, so the error must not claim that it was not executed.
        answer.await.unwrap_or(Err(RequestRejection::STORAGE_FAILED))
    }
}

/// The writer loop. Runs on a dedicated thread until it is stopped, every `StoreWriter` is dropped, or the storage fails.
pub struct WriterLoop {
    core: StoreCore,
    lessor: Arc<Lessor>,
    hub: Arc<WatchHub>,
    tasks: mpsc::Receiver<WriterTask>,
    /// Compactions whose old versions are still being removed.
    compacting: Vec<(ReplySender<WriteResponse>, WriteResponse)>,
}

impl WriterLoop {
    pub fn new(core: StoreCore, lessor: Arc<Lessor>, hub: Arc<WatchHub>) -> (StoreWriter, WriterLoop) {
        let (sender, tasks) = mpsc::channel(WRITE_QUEUE_LENGTH);
        let room = Arc::new(Semaphore::new(MAX_QUEUED_UNITS as usize));
        (StoreWriter { tasks: sender, room }, WriterLoop { core, lessor, hub, tasks, compacting: Vec::new() })
    }

    pub fn run(mut self) -> Result<(), StorageFault> {
        let mut waiting = Vec::with_capacity(MAX_WRITES_PER_COMMIT);
        loop {
            if self.core.is_compacting() {
                // Do not wait: remove old versions while no request is queued.
                self.gather(&mut waiting);
            } else {
                self.tasks.blocking_recv_many(&mut waiting, MAX_WRITES_PER_COMMIT);
                if waiting.is_empty() {
                    return Ok(());
                }
            }
            if self.execute(&mut waiting)?.is_break() {
                return Ok(());
            }
        }
    }

    fn gather(&mut self, waiting: &mut Vec<WriterTask>) {
        while waiting.len() < MAX_WRITES_PER_COMMIT
            && let Ok(task) = self.tasks.try_recv()
        {
            waiting.push(task);
        }
    }

    fn execute(&mut self, waiting: &mut Vec<WriterTask>) -> Result<ControlFlow<()>, StorageFault> {
        let mut writes = Vec::with_capacity(waiting.len());
        let mut replies = Vec::with_capacity(waiting.len());
        let mut others = Vec::new();
        for task in waiting.drain(..) {
            match task {
                WriterTask::Write { write, reply, .. } => {
                    writes.push(write);
                    replies.push((reply, false));
                }
                WriterTask::CompactPhysically { revision, reply } => {
                    writes.push(WriteRequest::Compact { revision });
                    replies.push((reply, true));
                }
                other => others.push(other),
            }
        }
        if !writes.is_empty() || self.core.is_compacting() {
            self.commit(&writes, replies)?;
        }
        for task in others {
            match task {
                WriterTask::Defragment { reply } => {
                    let outcome = self.core.defragment()?.map_err(|fault| {
                        tracing::warn!("the store was not defragmented: {fault}");
                        fault.into_status("the store was not defragmented")
                    });
                    let _ = reply.send(outcome);
                }
                WriterTask::Size { reply } => {
                    let _ = reply.send(Ok(self.core.size()?));
                }
                WriterTask::Stop => return Ok(ControlFlow::Break(())),
                WriterTask::Write { .. } | WriterTask::CompactPhysically { .. } => {}
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn commit(
        &mut self,
        writes: &[WriteRequest],
        replies: Vec<(ReplySender<WriteResponse>, bool)>,
    ) -> Result<(), StorageFault> {
        let applied = self.core.apply(writes)?;
        let now = Instant::now();
        for change in applied.lease_changes {
            self.lessor.apply(change, now);
        }
        for ((reply, when_compacted), answer) in replies.into_iter().zip(applied.answers) {
            match answer {
                Ok(answer) if when_compacted => self.compacting.push((reply, answer)),
                answer => drop(reply.send(answer)),
            }
        }
        if !self.core.is_compacting() {
            for (reply, answer) in self.compacting.drain(..) {
                let _ = reply.send(Ok(answer));
            }
        }
        self.hub.publish(&applied.commits);
        Ok(())
    }
}
