//! How long things may take, and how much may be asked for at once.

use std::time::Duration;

/// Every wait on the network ends within one of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// To open a connection, TLS included; shared out among the endpoints.
    pub dial: Duration,
    /// For one request, whatever has to be tried for it.
    pub request: Duration,
    /// Between HTTP/2 pings.
    pub keepalive: Duration,
    /// For the answer to a ping.
    pub keepalive_answer: Duration,
    /// Silence on a watch after which the server is asked for a sign of life.
    pub watch_silence: Duration,
    /// Entries asked for in the first page of a list; later pages follow the size of the entries.
    pub first_page: i64,
    /// For how long lists must agree that most objects of a range are gone before a watch reports them as deleted.
    pub absence_grace: Duration,
}

/// Seconds of [`Limits::absence_grace`]; 0 accepts every list at once.
pub const ABSENCE_GRACE_VARIABLE: &str = "TORTIE_ABSENCE_GRACE_SECONDS";

impl Limits {
    /// The default limits, with what the environment of the process sets.
    pub fn from_environment() -> Limits {
        let given = std::env::var(ABSENCE_GRACE_VARIABLE).ok().and_then(|text| text.trim().parse().ok());
        let default = Limits::default();
        Limits { absence_grace: given.map_or(default.absence_grace, Duration::from_secs), ..default }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            dial: Duration::from_secs(10),
            request: Duration::from_secs(15),
            keepalive: Duration::from_secs(30),
            keepalive_answer: Duration::from_secs(10),
            watch_silence: Duration::from_secs(60),
            first_page: 500,
            absence_grace: Duration::from_secs(30),
        }
    }
}
