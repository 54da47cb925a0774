//! Readiness gates of a network: URLs that must respond successfully before a container is attached.

use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};
use tortie_cni::{CniError, code};

/// Timeout for all gates together.
const READINESS_GATES_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for one response.
const GATE_RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
const GATE_RETRY_DELAY: Duration = Duration::from_millis(500);
/// Maximum number of gates; a configuration with more is a mistake.
const MAX_READINESS_GATES: usize = 16;
/// Length of `HTTP/1.1 200`, the part of the response that is read.
const STATUS_LINE_BYTES: usize = 12;

/// The address and the path to request.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ReadinessGate {
    authority: String,
    address: String,
    path: String,
}

/// Waits until every gate has responded with a status from 200 to 399.
pub async fn wait_for_gates(urls: &[String]) -> Result<(), CniError> {
    if urls.len() > MAX_READINESS_GATES {
        let message = format!("readiness_gates has {} URLs, more than {MAX_READINESS_GATES}", urls.len());
        return Err(CniError::new(code::NETWORK_CONFIG, message));
    }
    let deadline = Instant::now() + READINESS_GATES_TIMEOUT;
    for url in urls {
        let gate = ReadinessGate::parse(url)?;
        while let Err(error) =
            timeout(GATE_RESPONSE_TIMEOUT, gate.send_request()).await.unwrap_or(Err(GateError::NoResponse))
        {
            if Instant::now() > deadline {
                let message =
                    format!("readiness gate {url} is not open after {} s", READINESS_GATES_TIMEOUT.as_secs());
                return Err(CniError::new(code::TRY_AGAIN, message).with(error.to_string()));
            }
            sleep(GATE_RETRY_DELAY).await;
        }
    }
    Ok(())
}

/// Why a gate is not open.
#[derive(Debug, thiserror::Error)]
enum GateError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("no answer")]
    NoResponse,
    #[error("it answers {0}")]
    Status(u16),
    #[error("it answers {0:?}")]
    Response(String),
}

impl ReadinessGate {
    fn parse(url: &str) -> Result<ReadinessGate, CniError> {
        let invalid = |reason: &str| {
            let message = format!("invalid URL set for ReadinessGates: {url:?}");
            CniError::new(code::NETWORK_CONFIG, message).with(reason)
        };
        let rest = url.strip_prefix("http://").ok_or_else(|| invalid("it does not begin with http://"))?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.is_empty() || url.bytes().any(|byte| byte.is_ascii_control() || byte == b' ') {
            return Err(invalid("it names no host, or has characters that a URL cannot have"));
        }
        let port = authority.rsplit_once(':').map(|(_, port)| port).filter(|port| !port.ends_with(']'));
        let address = match port {
            Some(port) if port.parse::<u16>().is_ok() => authority.to_owned(),
            Some(_) => return Err(invalid("its port is not a number")),
            None => format!("{authority}:80"),
        };
        Ok(ReadinessGate { authority: authority.to_owned(), address, path: format!("/{path}") })
    }

    /// Sends one request, to which the response must be successful.
    async fn send_request(&self) -> Result<(), GateError> {
        let mut stream = TcpStream::connect(&self.address).await?;
        let ReadinessGate { authority, path, .. } = self;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut line = [0; STATUS_LINE_BYTES];
        stream.read_exact(&mut line).await?;
        let line = String::from_utf8_lossy(&line).into_owned();
        let status = line.split_once(' ').and_then(|(_, status)| status.parse::<u16>().ok());
        match status {
            Some(200..400) => Ok(()),
            Some(status) => Err(GateError::Status(status)),
            None => Err(GateError::Response(line)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn urls_that_cannot_be_asked_are_refused() {
        let gate = |url: &str| ReadinessGate::parse(url).map(|gate| (gate.address, gate.path));
        let whole = |address: &str, path: &str| Ok((address.to_owned(), path.to_owned()));
        assert_eq!(gate("http://localhost:9099/readiness"), whole("localhost:9099", "/readiness"));
        assert_eq!(gate("http://[::1]"), whole("[::1]:80", "/"));
        assert_eq!(gate("http://[::1]:81/a/b?c"), whole("[::1]:81", "/a/b?c"));
        for url in [
            "",
            "localhost",
            "https://localhost/",
            "http://",
            "http:///x",
            "http://a:b/",
            "http://a/\r\nX: y",
        ] {
            let error = ReadinessGate::parse(url).unwrap_err();
            assert!(error.to_string().contains("invalid URL set for ReadinessGates"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_gate_opens_when_the_answer_is_good() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/ready", listener.local_addr().unwrap());
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        tokio::spawn(async move {
            for status in ["503 No", "404 No", "204 Yes"] {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 1024];
                let length = stream.read(&mut request).await.unwrap();
                assert!(request[..length].starts_with(b"GET /ready HTTP/1.1\r\nHost: 127.0.0.1:"));
                count.fetch_add(1, Ordering::Relaxed);
                stream.write_all(format!("HTTP/1.1 {status}\r\n\r\n").as_bytes()).await.unwrap();
            }
        });
        wait_for_gates(&[url]).await.unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), 3);
        let many = vec!["http://localhost/".to_owned(); MAX_READINESS_GATES + 1];
        assert!(wait_for_gates(&many).await.unwrap_err().to_string().contains("17 URLs"));
    }
}
