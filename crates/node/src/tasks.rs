//! The tasks of the daemon. None of them returns in normal operation: if one ends, the process ends and its
//! supervisor restarts it. The kernel keeps its state in the meantime.

use crate::state::NodeState;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::{Id, JoinSet};

/// Interval between checks whether the BGP speaker responds, and the timeout of a check.
const SPEAKER_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Time to wait for further tasks after one has ended: a task that panics closes its channels, and tasks that read
/// from them may end and be noticed first.
const PANIC_GRACE_PERIOD: Duration = Duration::from_millis(200);

#[derive(Debug, thiserror::Error)]
#[error("{name} has ended unexpectedly{reason}; workloads keep their network, start the node again")]
pub struct TaskEnded {
    name: &'static str,
    reason: String,
}

impl TaskEnded {
    /// Returns whether the task panicked. Tasks are never cancelled, and a task that returned has no reason.
    fn has_panicked(&self) -> bool {
        !self.reason.is_empty()
    }
}

#[derive(Debug, Default)]
pub struct TaskSet {
    running: JoinSet<()>,
    names: HashMap<Id, &'static str>,
}

impl TaskSet {
    pub fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let handle = self.running.spawn(task);
        self.names.insert(handle.id(), name);
    }

    /// Cancels all tasks and waits until they have ended.
    pub async fn stop(&mut self) {
        self.running.shutdown().await;
    }

    /// Waits until a task has ended, and returns the one that caused it: the task that panicked, if one did.
    pub async fn wait_until_ended(&mut self) -> TaskEnded {
        let first = self.wait_for_next().await;
        let panicked = async {
            loop {
                let other = self.wait_for_next().await;
                if other.has_panicked() {
                    return other;
                }
            }
        };
        if first.has_panicked() {
            return first;
        }
        tokio::time::timeout(PANIC_GRACE_PERIOD, panicked).await.unwrap_or(first)
    }

    async fn wait_for_next(&mut self) -> TaskEnded {
        let (id, reason) = match self.running.join_next_with_id().await {
            Some(Ok((id, ()))) => (id, String::new()),
            Some(Err(error)) => (error.id(), format!(": {error}")),
            None => return std::future::pending().await,
        };
        TaskEnded { name: self.names.get(&id).copied().unwrap_or("a task"), reason }
    }
}

/// A separate thread with its own runtime, so that probes are answered even if the rest of the daemon is blocked. The
/// thread ends when this is dropped.
#[derive(Debug)]
pub struct ObserverThread {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl ObserverThread {
    /// Starts the thread. The receiver completes when the thread ends.
    pub fn start<F: Future<Output = ()>>(
        name: &str,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> std::io::Result<(ObserverThread, oneshot::Receiver<()>)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let (ended, end) = oneshot::channel();
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = work() => {}
                    _ = stopped => {}
                }
            });
            drop(ended);
        })?;
        Ok((ObserverThread { stop: Some(stop), thread: Some(thread) }, end))
    }
}

impl Drop for ObserverThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The thread has ended, with or without a panic.
            let _ = thread.join();
        }
    }
}

/// Records a heartbeat of the BGP speaker while it responds, or while there is no speaker.
pub async fn watch_speaker(state: Arc<NodeState>) {
    let heartbeat = state.liveness.part("bgp-speaker");
    loop {
        let responds = match state.running_bgp() {
            Some(running) => {
                tokio::time::timeout(SPEAKER_CHECK_INTERVAL, running.backend.status()).await.is_ok()
            }
            None => true,
        };
        if responds {
            heartbeat.beat();
        }
        tokio::time::sleep(SPEAKER_CHECK_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_task_that_ends_is_named() {
        let mut tasks = TaskSet::default();
        tasks.spawn("the engine", std::future::pending());
        tasks.spawn("the feed", async {});
        assert!(tasks.wait_until_ended().await.to_string().starts_with("the feed has ended unexpectedly;"));
        tasks.spawn("the dataplane", async { panic!("netlink") });
        let error = tasks.wait_until_ended().await.to_string();
        assert!(
            error.starts_with("the dataplane has ended unexpectedly: ") && error.contains("netlink"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn the_task_that_panicked_is_named_first() {
        let mut tasks = TaskSet::default();
        let (reports, mut received) = tokio::sync::mpsc::channel::<()>(1);
        tasks.spawn("the status of endpoints", async move { assert!(received.recv().await.is_none()) });
        tasks.spawn("the engine", async move {
            drop(reports);
            // The other task ends first.
            tokio::time::sleep(PANIC_GRACE_PERIOD / 10).await;
            panic!("a bug");
        });
        assert!(
            tasks.wait_until_ended().await.to_string().starts_with("the engine has ended unexpectedly: ")
        );
    }

    #[test]
    fn observer_thread_ends_with_its_handle() {
        let (observer, mut end) = ObserverThread::start("observer", std::future::pending::<()>).unwrap();
        assert_eq!(end.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        drop(observer);
        assert_eq!(end.try_recv(), Err(oneshot::error::TryRecvError::Closed));
    }
}
