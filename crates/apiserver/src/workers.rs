//! Runs CPU-bound work on request bodies outside the runtime's threads, which serve all requests. Only a few tasks
//! run at a time, because the parsed form of a 3 MB body takes many times as much memory.

use crate::metrics::ApiServerMetrics;
use crate::refusal::StatusError;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

const MAX_WORKERS: usize = 4;
/// How long a write waits for a worker.
const WORKER_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub struct WorkerPool {
    workers: Arc<Semaphore>,
    metrics: Arc<ApiServerMetrics>,
}

impl WorkerPool {
    pub fn new(metrics: Arc<ApiServerMetrics>) -> WorkerPool {
        WorkerPool { workers: Arc::new(Semaphore::new(MAX_WORKERS)), metrics }
    }

    /// Runs `work` on a blocking thread.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, StatusError> + Send + 'static,
    ) -> Result<T, StatusError> {
        let free = tokio::time::timeout(WORKER_TIMEOUT, self.workers.clone().acquire_owned()).await;
        let Ok(Ok(worker)) = free else {
            self.metrics.count_refused("worker");
            return Err(StatusError::too_many_requests());
        };
        let ended = tokio::task::spawn_blocking(move || {
            // Held by the work, not by the request: a client that disconnects does not make room for more work.
            let _worker = worker;
            work()
        });
        ended.await.unwrap_or_else(|error| {
            tracing::error!(%error, "a worker panicked while it processed a request");
            Err(StatusError::internal("the request could not be processed"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn workers_are_bounded_and_survive_panics() {
        let pool = WorkerPool::new(Arc::new(ApiServerMetrics::new()));
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..4 * MAX_WORKERS {
            let (pool, running, most) = (pool.clone(), running.clone(), most.clone());
            tasks.spawn(async move {
                let work = move || {
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(5));
                    running.fetch_sub(1, Ordering::SeqCst);
                    assert!(number % 2 == 0, "every second one panics");
                    Ok(number)
                };
                pool.run(work).await
            });
        }
        let outcomes = tasks.join_all().await;
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 2 * MAX_WORKERS);
        assert!(
            outcomes.iter().flat_map(|outcome| outcome.as_ref().err()).all(|refusal| refusal.code() == 500)
        );
        assert!(most.load(Ordering::SeqCst) <= MAX_WORKERS);
    }
}
