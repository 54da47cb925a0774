//! The open connections of a listener: how many there may be, of all sources and of one, and which of them gives way to a new
//! one. No I/O: connections are tasks that are aborted.

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

/// What happens to a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    Free,
    /// Another connection was closed for it.
    Displaced,
    /// All that could give way are busy.
    Refused,
}

/// Connections in the order in which they were opened.
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

    /// Makes room for a connection of this source, by closing another one if there has to be.
    pub fn make_room(&mut self, source: IpAddr) -> Admission {
        self.open.retain(|connection| !connection.task.is_finished());
        let own = self.open.iter().filter(|connection| connection.source == source).count();
        if own < self.limits.per_source && self.open.len() < self.limits.total {
            return Admission::Free;
        }
        let victim = match own < self.limits.per_source {
            true => self.dispensable(own),
            false => self.open.iter().position(|other| other.source == source && !other.activity.is_busy()),
        };
        let Some(victim) = victim else { return Admission::Refused };
        self.open.remove(victim).task.abort();
        Admission::Displaced
    }

    pub fn insert(&mut self, source: IpAddr, activity: ConnectionActivity, task: AbortHandle) {
        self.open.push(OpenConnection { source, activity, task });
    }

    /// The oldest idle connection of the source that has the most. Without an idle one, the oldest of the source that has the
    /// most, unless that is the source of the new connection, which has `own`.
    fn dispensable(&self, own: usize) -> Option<usize> {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for connection in &self.open {
            *counts.entry(connection.source).or_default() += 1;
        }
        let count = |connection: &OpenConnection| counts.get(&connection.source).copied().unwrap_or_default();
        let largest = |busy: bool| {
            let candidates = self.open.iter().enumerate();
            let candidates = candidates.filter(|(_, connection)| connection.activity.is_busy() == busy);
            // The last of several maxima is taken, and that is to be the oldest.
            candidates.rev().max_by_key(|(_, connection)| count(connection))
        };
        let busy = || largest(true).filter(|(_, connection)| count(connection) > own + 1);
        largest(false).or_else(busy).map(|(position, _)| position)
    }
}

/// The requests in progress on a connection. One without any is idle, as is one whose handshake is not done.
#[derive(Clone, Debug, Default)]
pub struct ConnectionActivity(Arc<watch::Sender<usize>>);

/// Counts a request as in progress until it is dropped.
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

    /// Returns when the connection has been idle for so long.
    pub async fn idle_for(&self, limit: Duration) {
        let mut requests = self.0.subscribe();
        loop {
            // This keeps the sender.
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

    const LIMITS: ConnectionLimits = ConnectionLimits { total: 8, per_source: 3 };

    struct Sources {
        table: ConnectionTable,
        tasks: JoinSet<()>,
    }

    impl Sources {
        fn new() -> Sources {
            Sources { table: ConnectionTable::new(LIMITS), tasks: JoinSet::new() }
        }

        fn connect(&mut self, source: u8) -> (Admission, ConnectionActivity) {
            let source = IpAddr::from([10, 0, 0, source]);
            let admission = self.table.make_room(source);
            let activity = ConnectionActivity::default();
            if admission != Admission::Refused {
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
        let mut sources = Sources::new();
        let (_, first) = sources.connect(1);
        let _request = first.begin_request();
        sources.connect(1);
        assert_eq!(sources.connect(1).0, Admission::Free);
        assert_eq!(sources.connect(1).0, Admission::Displaced);
        assert!(sources.table.open[0].activity.is_busy(), "a busy connection stays");
        assert_eq!(sources.sources(), [1, 1, 1]);
        let rest: Vec<RequestGuard> =
            sources.table.open[1..].iter().map(|idle| idle.activity.begin_request()).collect();
        assert_eq!(sources.connect(1).0, Admission::Refused);
        drop(rest);
        assert_eq!(sources.connect(1).0, Admission::Displaced);
    }

    #[tokio::test]
    async fn a_full_table_displaces_the_largest_source() {
        let mut sources = Sources::new();
        for source in [9, 1, 1, 2, 2, 2, 3, 3] {
            assert_eq!(sources.connect(source).0, Admission::Free);
        }
        assert_eq!(sources.connect(4).0, Admission::Displaced);
        assert_eq!(sources.sources(), [9, 1, 1, 2, 2, 3, 3, 4]);
        // Where all are busy, a source that has few displaces one that has many, and not the other way round.
        let busy: Vec<RequestGuard> =
            sources.table.open.iter().map(|connection| connection.activity.begin_request()).collect();
        assert_eq!(sources.connect(3).0, Admission::Refused);
        assert_eq!(sources.connect(5).0, Admission::Displaced);
        assert_eq!(sources.sources(), [9, 1, 2, 2, 3, 3, 4, 5]);
        drop(busy);
    }

    #[tokio::test]
    async fn finished_connections_count_no_more() {
        let mut sources = Sources::new();
        for _ in 0..3 {
            sources.connect(1);
        }
        sources.tasks.shutdown().await;
        assert_eq!(sources.connect(1).0, Admission::Free);
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
