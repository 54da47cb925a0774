//! Timeouts and page sizes of the etcd and Kubernetes clients.

use std::time::Duration;

/// Timeouts and sizes. Every network operation ends within one of these timeouts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreLimits {
    /// Timeout for opening a connection including TLS; divided among the endpoints.
    pub dial: Duration,
    /// Timeout for one request, including retries.
    pub request: Duration,
    /// Interval between HTTP/2 pings.
    pub keepalive: Duration,
    /// Timeout for the response to a ping.
    pub keepalive_answer: Duration,
    /// Time without a message on a watch after which the client requests a progress notification.
    pub watch_silence: Duration,
    /// Timeout for the response to a probe of an etcd cluster whose watches are silent.
    pub probe: Duration,
    /// Number of entries in the first page of a list; later pages adapt to the size of the entries.
    pub first_page: i64,
    /// Time during which lists must agree that most objects of a range are gone before a watch reports them as deleted.
    pub absence_grace: Duration,
}

/// Environment variable with the seconds of [`StoreLimits::absence_grace`]; 0 accepts every list immediately.
pub const ABSENCE_GRACE_VARIABLE: &str = "TORTIE_ABSENCE_GRACE_SECONDS";

impl StoreLimits {
    /// Returns the default limits, overridden by the environment of the process.
    pub fn from_environment() -> StoreLimits {
        let given = std::env::var(ABSENCE_GRACE_VARIABLE).ok().and_then(|text| text.trim().parse().ok());
        let default = StoreLimits::default();
        StoreLimits { absence_grace: given.map_or(default.absence_grace, Duration::from_secs), ..default }
    }
}

impl Default for StoreLimits {
    fn default() -> Self {
        StoreLimits {
            dial: Duration::from_secs(10),
            request: Duration::from_secs(15),
            // etcd closes connections that ping more often than every five seconds.
            keepalive: Duration::from_secs(10),
            keepalive_answer: Duration::from_secs(5),
            watch_silence: Duration::from_secs(60),
            probe: Duration::from_secs(4),
            first_page: 500,
            absence_grace: Duration::from_secs(30),
        }
    }
}
