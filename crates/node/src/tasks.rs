//! The tasks that make up the daemon. None of them ends by itself: one that does ends the process, which is then started
//! again by whoever supervises it. The kernel keeps what it has meanwhile.

use crate::state::State;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::{Id, JoinSet};

/// Between looks at whether the BGP speaker answers.
const LOOK: Duration = Duration::from_secs(5);
/// For the others to end in when one has: a part that panics takes those with it that hear from it, and they may be seen first.
const AFTERMATH: Duration = Duration::from_millis(200);

#[derive(Debug, thiserror::Error)]
#[error("{name} has ended unexpectedly{reason}; workloads keep their network, start the node again")]
pub struct TaskEnded {
    name: &'static str,
    reason: String,
}

impl TaskEnded {
    /// Tasks are not cancelled: one that returned has no reason to give.
    fn has_panicked(&self) -> bool {
        !self.reason.is_empty()
    }
}

#[derive(Debug, Default)]
pub struct Tasks {
    running: JoinSet<()>,
    names: HashMap<Id, &'static str>,
}

impl Tasks {
    pub fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let handle = self.running.spawn(task);
        self.names.insert(handle.id(), name);
    }

    /// Returns when none of them is at work any more.
    pub async fn stop(&mut self) {
        self.running.shutdown().await;
    }

    /// Returns when one of the tasks has ended, and names the one that began it: the one that panicked if one did.
    pub async fn ended(&mut self) -> TaskEnded {
        let first = self.next_ended().await;
        let panicked = async {
            loop {
                let other = self.next_ended().await;
                if other.has_panicked() {
                    return other;
                }
            }
        };
        if first.has_panicked() {
            return first;
        }
        tokio::time::timeout(AFTERMATH, panicked).await.unwrap_or(first)
    }

    async fn next_ended(&mut self) -> TaskEnded {
        let (id, reason) = match self.running.join_next_with_id().await {
            Some(Ok((id, ()))) => (id, String::new()),
            Some(Err(error)) => (error.id(), format!(": {error}")),
            None => return std::future::pending().await,
        };
        TaskEnded { name: self.names.get(&id).copied().unwrap_or("a task"), reason }
    }
}

/// A thread of its own, so that probes are answered whatever the rest of the daemon does. Ends when it is dropped.
#[derive(Debug)]
pub struct Aside {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Aside {
    /// The receiver hears of the end of the thread.
    pub fn start<F: Future<Output = ()>>(
        name: &str,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> std::io::Result<(Aside, oneshot::Receiver<()>)> {
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
        Ok((Aside { stop: Some(stop), thread: Some(thread) }, end))
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has ended, one way or the other.
            let _ = thread.join();
        }
    }
}

/// Gives the signs of life of the BGP speaker: it answers, or there is none to answer.
pub async fn watch_speaker(state: Arc<State>) {
    let heartbeat = state.liveness.part("bgp-speaker");
    loop {
        let answers = match state.running_bgp() {
            Some(running) => tokio::time::timeout(LOOK, running.backend.status()).await.is_ok(),
            None => true,
        };
        if answers {
            heartbeat.beat();
        }
        tokio::time::sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_task_that_ends_is_named() {
        let mut tasks = Tasks::default();
        tasks.spawn("the engine", std::future::pending());
        tasks.spawn("the feed", async {});
        assert!(tasks.ended().await.to_string().starts_with("the feed has ended unexpectedly;"));
        tasks.spawn("the dataplane", async { panic!("netlink") });
        let error = tasks.ended().await.to_string();
        assert!(
            error.starts_with("the dataplane has ended unexpectedly: ") && error.contains("netlink"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn the_task_that_panicked_is_named_and_not_those_that_ended_with_it() {
        let mut tasks = Tasks::default();
        let (reports, mut heard) = tokio::sync::mpsc::channel::<()>(1);
        tasks.spawn("the status of endpoints", async move { assert!(heard.recv().await.is_none()) });
        tasks.spawn("the engine", async move {
            drop(reports);
            // The other ends first.
            tokio::time::sleep(AFTERMATH / 10).await;
            panic!("a bug");
        });
        assert!(tasks.ended().await.to_string().starts_with("the engine has ended unexpectedly: "));
    }

    #[test]
    fn a_thread_aside_ends_with_its_handle() {
        let (aside, mut end) = Aside::start("aside", std::future::pending::<()>).unwrap();
        assert_eq!(end.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        drop(aside);
        assert_eq!(end.try_recv(), Err(oneshot::error::TryRecvError::Closed));
    }
}
