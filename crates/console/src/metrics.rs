//! Counters of requests, connections and flows that the limits of the console rejected.

use prometheus_client::metrics::counter::Counter;
use tortie_http::{MetricsPage, add_metrics};

#[derive(Debug, Default)]
pub struct ConsoleMetrics {
    /// Connections closed in favour of new ones.
    pub displaced_connections: Counter,
    /// Connections to the Unix socket beyond the limit.
    pub refused_connections: Counter,
    /// Requests beyond the rate.
    pub limited_requests: Counter,
    /// Requests without a session, from another origin or for another host.
    pub refused_requests: Counter,
    /// Streams and computations beyond their limits.
    pub busy_requests: Counter,
    /// Flows that a slow client did not receive.
    pub lost_flows: Counter,
}

impl ConsoleMetrics {
    /// Renders the metrics in the Prometheus text format.
    pub fn render(&self, open_streams: usize) -> String {
        let mut page = MetricsPage::default();
        add_metrics! { page;
            counter "tortie_console_displaced_connections_total", "Connections closed in favour of new ones." => self.displaced_connections.get();
            counter "tortie_console_refused_connections_total", "Connections to the Unix socket beyond the limit." => self.refused_connections.get();
            counter "tortie_console_limited_requests_total", "Requests beyond the rate limit." => self.limited_requests.get();
            counter "tortie_console_refused_requests_total", "Requests without a session, from another origin or for another host." => self.refused_requests.get();
            counter "tortie_console_busy_requests_total", "Streams and computations beyond their limits." => self.busy_requests.get();
            counter "tortie_console_lost_flows_total", "Flows that slow clients did not receive." => self.lost_flows.get();
            gauge "tortie_console_streams", "Open streams." => open_streams;
        }
        page.0
    }
}
