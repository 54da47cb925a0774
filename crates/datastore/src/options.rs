//! The configuration of the embedded store.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use tortie_tls::TlsFiles;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    pub data_dir: PathBuf,
    pub listen: Vec<ListenAddress>,
    /// Maximum size on disk; above it only reads, deletes and compaction are allowed.
    pub quota_bytes: u64,
    pub auto_compaction: AutoCompaction,
    /// Required for `https://` addresses.
    pub tls: Option<TlsFiles>,
    /// Whether other machines may connect without TLS.
    pub allow_plaintext: bool,
}

impl StoreOptions {
    pub const DEFAULT_QUOTA_BYTES: u64 = 2 << 30;

    pub fn new(data_dir: impl Into<PathBuf>, listen: Vec<ListenAddress>) -> StoreOptions {
        StoreOptions {
            data_dir: data_dir.into(),
            listen,
            quota_bytes: Self::DEFAULT_QUOTA_BYTES,
            auto_compaction: AutoCompaction::default(),
            tls: None,
            allow_plaintext: false,
        }
    }
}

/// Which history to keep; the rest is compacted automatically.
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

/// An address on which the server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// Without encryption: loopback addresses only, unless plaintext is allowed.
    Tcp(SocketAddr),
    Tls(SocketAddr),
    Unix(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no address to listen on: use http://127.0.0.1:2379, https://ADDRESS:2379 or unix:///run/tortie/datastore.sock"
)]
pub struct ListenError(String);

impl FromStr for ListenAddress {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<ListenAddress, ListenError> {
        let parsed = match text.split_once("://") {
            Some(("unix", path)) if path.starts_with('/') => Some(ListenAddress::Unix(path.into())),
            Some(("http", address)) => parse_address(address).map(ListenAddress::Tcp),
            Some(("https", address)) => parse_address(address).map(ListenAddress::Tls),
            _ => None,
        };
        parsed.ok_or_else(|| ListenError(text.to_owned()))
    }
}

fn parse_address(text: &str) -> Option<SocketAddr> {
    let text = text.strip_suffix('/').unwrap_or(text);
    match text.strip_prefix("localhost:") {
        Some(port) => format!("127.0.0.1:{port}").parse().ok(),
        None => text.parse().ok(),
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            ListenAddress::Tcp(address) => write!(f, "http://{address}"),
            ListenAddress::Tls(address) => write!(f, "https://{address}"),
            ListenAddress::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for text in [
            "http://127.0.0.1:2379",
            "http://[::1]:0",
            "https://0.0.0.0:1",
            "unix:///run/tortie/datastore.sock",
        ] {
            assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), text);
        }
        assert_eq!("http://localhost:1".parse(), Ok(ListenAddress::Tcp(([127, 0, 0, 1], 1).into())));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in
            ["", "127.0.0.1:2379", "ftp://127.0.0.1:2379", "http://x", "unix://relative", "http://127.0.0.1"]
        {
            assert_eq!(text.parse::<ListenAddress>(), Err(ListenError(text.to_owned())));
        }
    }
}
