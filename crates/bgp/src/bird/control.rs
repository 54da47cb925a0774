//! A client of BIRD's control socket: a command is one line, a reply is a sequence of numbered lines.

use super::reply::{self, ReplyLine};
use crate::core::{RouteStatus, SpeakerStatus};
use crate::family::BgpFamily;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// Timeout for one line of a reply.
const REPLY_LINE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum size of a whole reply in bytes.
const MAX_REPLY_BYTES: u64 = 64 << 20;
/// Smallest reply code that reports a failure.
const FIRST_ERROR_CODE: u16 = 8000;

#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("no BIRD answers at {}: {error}", path.display())]
    Unreachable { path: PathBuf, error: io::Error },
    #[error("BIRD refuses: {0}")]
    Refused(String),
    #[error("{0:?} is not BIRD 2, for which the configuration is made")]
    Version(String),
    #[error("BIRD's answer cannot be read: {0}")]
    Unreadable(String),
}

/// A BIRD daemon, addressed by its control socket. Every command uses a new connection, so a restart of BIRD needs no
/// special handling.
#[derive(Clone, Debug)]
pub struct BirdControl {
    path: PathBuf,
}

impl BirdControl {
    pub fn new(path: PathBuf) -> BirdControl {
        BirdControl { path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks whether BIRD accepts a file as its configuration.
    pub async fn check(&self, file: &Path) -> Result<(), ControlError> {
        self.ask(&format!("configure check {}", quote_path(file)?)).await.map(drop)
    }

    /// Makes BIRD load a file as its configuration. Sessions that are unchanged continue undisturbed.
    pub async fn configure(&self, file: &Path) -> Result<(), ControlError> {
        self.ask(&format!("configure {}", quote_path(file)?)).await.map(drop)
    }

    /// Returns when BIRD was started.
    pub async fn started(&self) -> Result<SystemTime, ControlError> {
        Ok(reply::daemon(&self.ask("show status").await?)?.started)
    }

    /// Returns the status in the form of our own speaker; times are counted from the start of BIRD. The caller
    /// supplies the AS number of the node because BIRD does not report it.
    pub async fn status(&self, asn: u32) -> Result<SpeakerStatus, ControlError> {
        let daemon = reply::daemon(&self.ask("show status").await?)?;
        reply::status(asn, &daemon, &self.ask("show protocols all").await?)
    }

    /// Returns all paths to all prefixes of a family.
    pub async fn routes(&self, family: BgpFamily) -> Result<Vec<RouteStatus>, ControlError> {
        let table = match family {
            BgpFamily::V4 => "master4",
            BgpFamily::V6 => "master6",
        };
        reply::routes(&self.ask(&format!("show route all table {table}")).await?)
    }

    fn unreachable(&self, error: io::Error) -> ControlError {
        ControlError::Unreachable { path: self.path.clone(), error }
    }

    async fn ask(&self, command: &str) -> Result<Vec<ReplyLine>, ControlError> {
        let stream = UnixStream::connect(&self.path).await.map_err(|error| self.unreachable(error))?;
        let (read, mut write) = stream.into_split();
        let mut read = BufReader::new(read.take(MAX_REPLY_BYTES));
        let greeting = self.answer(&mut read).await?;
        let version = greeting.first().map(|line| line.text.clone()).unwrap_or_default();
        let number =
            version.strip_prefix("BIRD ").and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
        if number.is_none_or(|number| number < 2) {
            return Err(ControlError::Version(version));
        }
        write.write_all(format!("{command}\n").as_bytes()).await.map_err(|error| self.unreachable(error))?;
        let lines = self.answer(&mut read).await?;
        match lines.iter().find(|line| line.code >= FIRST_ERROR_CODE) {
            Some(failure) => Err(ControlError::Refused(failure.text.clone())),
            None => Ok(lines),
        }
    }

    async fn answer(
        &self,
        read: &mut (impl AsyncBufReadExt + Unpin),
    ) -> Result<Vec<ReplyLine>, ControlError> {
        let mut lines: Vec<ReplyLine> = Vec::new();
        loop {
            let mut bytes = Vec::new();
            let size = timeout(REPLY_LINE_TIMEOUT, read.read_until(b'\n', &mut bytes)).await;
            let size = size
                .map_err(|_| self.unreachable(io::ErrorKind::TimedOut.into()))?
                .map_err(|error| self.unreachable(error))?;
            if size == 0 {
                return Err(ControlError::Unreadable("it ends too early, or is over 64 MiB".to_owned()));
            }
            let text = String::from_utf8_lossy(&bytes);
            let previous_code = lines.last().map_or(0, |line| line.code);
            let (line, last) = ReplyLine::parse(text.trim_end_matches('\n'), previous_code)?;
            lines.push(line);
            if last {
                return Ok(lines);
            }
        }
    }
}

fn quote_path(file: &Path) -> Result<String, ControlError> {
    match file.to_str() {
        Some(text) if !text.contains(['"', '\n']) => Ok(format!("\"{text}\"")),
        _ => Err(ControlError::Refused(format!("{} cannot be named in a command", file.display()))),
    }
}
