//! How the embedded store is run.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub data_dir: PathBuf,
    pub listen: Vec<Listen>,
    /// Above this size on disk only reads, deletes and compaction go on.
    pub quota_bytes: u64,
    pub auto_compaction: AutoCompaction,
}

impl Options {
    pub const DEFAULT_QUOTA_BYTES: u64 = 2 << 30;

    pub fn new(data_dir: impl Into<PathBuf>, listen: Vec<Listen>) -> Options {
        Options {
            data_dir: data_dir.into(),
            listen,
            quota_bytes: Self::DEFAULT_QUOTA_BYTES,
            auto_compaction: AutoCompaction::default(),
        }
    }
}

/// Which part of the past is kept; the rest goes without being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoCompaction {
    Off,
    /// Revisions younger than this.
    Age(Duration),
    /// This many revisions.
    Revisions(i64),
}

impl Default for AutoCompaction {
    fn default() -> AutoCompaction {
        AutoCompaction::Age(Duration::from_secs(300))
    }
}

/// Where clients connect. Nothing is encrypted and nobody is asked who they are, so it stays on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    #[error(
        "{0:?} is no address to listen on: use http://127.0.0.1:2379 or unix:///run/tortie/datastore.sock"
    )]
    Malformed(String),
    #[error(
        "{0} is not a loopback address: the embedded store serves this machine only; use 127.0.0.1 or [::1]"
    )]
    NotLoopback(IpAddr),
}

impl FromStr for Listen {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Listen, ListenError> {
        let malformed = || ListenError::Malformed(text.to_owned());
        if let Some(path) = text.strip_prefix("unix://") {
            return if path.starts_with('/') { Ok(Listen::Unix(path.into())) } else { Err(malformed()) };
        }
        let address = text.strip_prefix("http://").ok_or_else(malformed)?;
        let address = address.strip_suffix('/').unwrap_or(address);
        let address = match address.strip_prefix("localhost:") {
            Some(port) => format!("127.0.0.1:{port}"),
            None => address.to_owned(),
        };
        let address: SocketAddr = address.parse().map_err(|_| malformed())?;
        match address.ip().is_loopback() {
            true => Ok(Listen::Tcp(address)),
            false => Err(ListenError::NotLoopback(address.ip())),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Listen::Tcp(address) => write!(f, "http://{address}"),
            Listen::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for text in ["http://127.0.0.1:2379", "http://[::1]:0", "unix:///run/tortie/datastore.sock"] {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), text);
        }
        assert_eq!("http://localhost:1".parse(), Ok(Listen::Tcp(([127, 0, 0, 1], 1).into())));
    }

    #[test]
    fn other_machines_and_nonsense_are_refused() {
        for text in ["http://0.0.0.0:2379", "http://10.0.0.1:2379", "http://[::]:2379"] {
            let error = text.parse::<Listen>().unwrap_err();
            assert!(error.to_string().contains("is not a loopback address"), "{error}");
        }
        for text in [
            "",
            "127.0.0.1:2379",
            "https://127.0.0.1:2379",
            "http://x",
            "unix://relative",
            "http://127.0.0.1",
        ] {
            assert_eq!(text.parse::<Listen>(), Err(ListenError::Malformed(text.to_owned())));
        }
    }
}
