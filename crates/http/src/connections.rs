//! Table of the open connections of a listener. It enforces a limit in total and per source address and selects the
//! connection that is closed in favour of a new one. It does no I/O: a connection is a task that it aborts.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    pub total: usize,
    pub per_source: usize,
}

/// Result of making room for a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionAdmission {
    Free,
    /// Another connection was closed to make room.
    Displaced,
    /// The limit is reached and every connection that could be closed is busy.
    Refused,
}

/// Open connections, ordered by the time of opening.
#[derive(Debug)]
pub struct ConnectionTable {
    limits: ConnectionLimits,
    open: Vec<OpenConnection>,
}

#[derive(Debug)]
struct OpenConnection {
    source: IpAddr,
    activity: ConnectionActivity,
    task: AbortHandle,
}

impl ConnectionTable {
    pub fn new(limits: ConnectionLimits) -> ConnectionTable {
        ConnectionTable { limits, open: Vec::new() }
    }

    /// Makes room for a connection from `source`, closing another connection if a limit is reached.
    pub fn make_room(&mut self, source: IpAddr) -> ConnectionAdmission {
        self.open.retain(|connection| !connection.task.is_finished());
        let own = self.open.iter().filter(|connection| connection.source == source).count();
        if own < self.limits.per_source && self.open.len() < self.limits.total {
            return ConnectionAdmission::Free;
        }
        let victim = if own < self.limits.per_source {
            self.find_dispensable(own)
        } else {
            self.open.iter().position(|other| other.source == source && !other.activity.is_busy())
        };
        let Some(victim) = victim else { return ConnectionAdmission::Refused };
        self.open.remove(victim).task.abort();
        ConnectionAdmission::Displaced
    }

    pub fn insert(&mut self, source: IpAddr, activity: ConnectionActivity, task: AbortHandle) {
        self.open.push(OpenConnection { source, activity, task });
    }

    /// Returns the position of the connection to close: the oldest idle connection of the source with the most
    /// connections. If no connection is idle, the oldest connection of the source with the most, provided that it keeps
    /// at least as many as the source of the new connection then has. `own` is the present number of the latter.
    fn find_dispensable(&self, own: usize) -> Option<usize> {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for connection in &self.open {
            *counts.entry(connection.source).or_default() += 1;
        }
        let candidates = self.open.iter().enumerate().filter_map(|(position, connection)| {
            let count = counts.get(&connection.source).copied().unwrap_or_default();
            let is_idle = !connection.activity.is_busy();
            (is_idle || count > own + 1).then_some((is_idle, count, position))
        });
        // `max_by_key` returns the last of several maxima; iterating in reverse makes that the oldest.
        candidates.rev().max_by_key(|(is_idle, count, _)| (*is_idle, *count)).map(|(.., position)| position)
    }
}

/// Number of requests in progress on a connection. A connection without requests is idle, also during the TLS
/// handshake.
#[derive(Clone, Debug, Default)]
pub struct ConnectionActivity(Arc<watch::Sender<usize>>);

/// Guard that counts a request as in progress until it is dropped.
#[derive(Debug)]
pub struct RequestGuard(ConnectionActivity);

impl ConnectionActivity {
    pub fn begin_request(&self) -> RequestGuard {
        self.0.send_modify(|requests| *requests += 1);
        RequestGuard(self.clone())
    }

    pub fn is_busy(&self) -> bool {
        *self.0.borrow() > 0
    }

    /// Returns once the connection has been idle for `limit` without interruption.
    pub async fn idle_for(&self, limit: Duration) {
        let mut requests = self.0.subscribe();
        loop {
            // Cannot fail: `self` keeps the sender alive.
            let _ = requests.wait_for(|requests| *requests == 0).await;
            if tokio::time::timeout(limit, requests.changed()).await.is_err() {
                return;
            }
        }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.0.send_modify(|requests| *requests -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::task::JoinSet;

    const TEST_CONNECTION_LIMITS: ConnectionLimits = ConnectionLimits { total: 8, per_source: 3 };

    struct ConnectionSources {
        table: ConnectionTable,
        tasks: JoinSet<()>,
    }

    impl ConnectionSources {
        fn new() -> ConnectionSources {
            ConnectionSources { table: ConnectionTable::new(TEST_CONNECTION_LIMITS), tasks: JoinSet::new() }
        }

        fn connect(&mut self, source: u8) -> (ConnectionAdmission, ConnectionActivity) {
            let source = IpAddr::from([10, 0, 0, source]);
            let admission = self.table.make_room(source);
            let activity = ConnectionActivity::default();
            if admission != ConnectionAdmission::Refused {
                let task = self.tasks.spawn(std::future::pending());
                self.table.insert(source, activity.clone(), task);
            }
            (admission, activity)
        }

        fn sources(&self) -> Vec<u8> {
            let last = |source: IpAddr| match source {
                IpAddr::V4(address) => address.octets()[3],
                IpAddr::V6(_) => 0,
            };
            self.table.open.iter().map(|connection| last(connection.source)).collect()
        }
    }

    #[tokio::test]
    async fn the_oldest_idle_connection_gives_way() {
        let mut sources = ConnectionSources::new();
        let (_, first) = sources.connect(1);
        let _request = first.begin_request();
        sources.connect(1);
        assert_eq!(sources.connect(1).0, ConnectionAdmission::Free);
        assert_eq!(sources.connect(1).0, ConnectionAdmission::Displaced);
        assert!(sources.table.open[0].activity.is_busy(), "a busy connection stays");
        assert_eq!(sources.sources(), [1, 1, 1]);
        let rest: Vec<RequestGuard> =
            sources.table.open[1..].iter().map(|idle| idle.activity.begin_request()).collect();
        assert_eq!(sources.connect(1).0, ConnectionAdmission::Refused);
        drop(rest);
        assert_eq!(sources.connect(1).0, ConnectionAdmission::Displaced);
    }

    #[tokio::test]
    async fn a_full_table_displaces_the_largest_source() {
        let mut sources = ConnectionSources::new();
        for source in [9, 1, 1, 2, 2, 2, 3, 3] {
            assert_eq!(sources.connect(source).0, ConnectionAdmission::Free);
        }
        assert_eq!(sources.connect(4).0, ConnectionAdmission::Displaced);
        assert_eq!(sources.sources(), [9, 1, 1, 2, 2, 3, 3, 4]);
        // If all connections are busy, a source with few connections displaces one of a source with many, never the
        // reverse.
        let busy: Vec<RequestGuard> =
            sources.table.open.iter().map(|connection| connection.activity.begin_request()).collect();
        assert_eq!(sources.connect(3).0, ConnectionAdmission::Refused);
        assert_eq!(sources.connect(5).0, ConnectionAdmission::Displaced);
        assert_eq!(sources.sources(), [9, 1, 2, 2, 3, 3, 4, 5]);
        drop(busy);
    }

    #[tokio::test]
    async fn finished_connections_count_no_more() {
        let mut sources = ConnectionSources::new();
        for _ in 0..3 {
            sources.connect(1);
        }
        sources.tasks.shutdown().await;
        assert_eq!(sources.connect(1).0, ConnectionAdmission::Free);
        assert_eq!(sources.sources(), [1]);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_time_begins_after_the_last_request() {
        let activity = ConnectionActivity::default();
        let (limit, start) = (Duration::from_secs(60), tokio::time::Instant::now());
        let request = activity.begin_request();
        let other = activity.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(100)).await;
            drop(request);
            tokio::time::sleep(Duration::from_secs(50)).await;
            drop(other.begin_request());
        });
        activity.idle_for(limit).await;
        assert_eq!(start.elapsed(), Duration::from_secs(210));
    }
}
