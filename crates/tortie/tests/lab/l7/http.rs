//! HTTP/1.1 in pods: a client that sends requests exactly as given, and a server that counts them.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tortie_dataplane::Netns;

const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
const ACCEPT_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Time after which a connection that the kernel drops counts as blocked.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpResponse {
    pub status: u16,
    pub body: String,
    closes: bool,
}

/// A keep-alive connection from a pod, which is opened again after the server has closed it.
pub struct HttpClient {
    namespace: Netns,
    address: SocketAddr,
    stream: Option<BufReader<TcpStream>>,
}

impl HttpClient {
    /// `namespace` is the name of the client's network namespace. Connects with the first request.
    pub fn new(namespace: &str, address: IpAddr, port: u16) -> HttpClient {
        let namespace = Netns::open(format!("/run/netns/{namespace}")).unwrap();
        HttpClient { namespace, address: SocketAddr::new(address, port), stream: None }
    }

    pub fn connect(&mut self) -> io::Result<()> {
        let connect = || TcpStream::connect_timeout(&self.address, CONNECT_TIMEOUT);
        let stream = self.namespace.run(connect).unwrap()?;
        stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
        stream.set_nodelay(true)?;
        self.stream = Some(BufReader::new(stream));
        Ok(())
    }

    pub fn is_connected(&self) -> bool {
        self.stream.is_some()
    }

    /// Sends a request and returns its response. The target is not changed in any way.
    pub fn send(&mut self, method: &str, target: &str) -> io::Result<HttpResponse> {
        self.send_with_headers(method, target, "")
    }

    /// Sends a request with further header lines, each of which ends with CRLF.
    pub fn send_with_headers(
        &mut self,
        method: &str,
        target: &str,
        headers: &str,
    ) -> io::Result<HttpResponse> {
        if self.stream.is_none() {
            self.connect()?;
        }
        let response = self.exchange(method, target, headers);
        if response.as_ref().map_or(true, |response| response.closes) {
            self.stream = None;
        }
        response
    }

    /// Sends a request whose response must arrive, and returns its status.
    pub fn status(&mut self, method: &str, target: &str) -> u16 {
        self.send(method, target).unwrap_or_else(|error| panic!("{method} {target}: {error}")).status
    }

    fn exchange(&mut self, method: &str, target: &str, headers: &str) -> io::Result<HttpResponse> {
        let Some(stream) = &mut self.stream else { return Err(io::ErrorKind::NotConnected.into()) };
        let request =
            format!("{method} {target} HTTP/1.1\r\nhost: web\r\ncontent-length: 0\r\n{headers}\r\n");
        stream.get_mut().write_all(request.as_bytes())?;
        let head = read_head(stream)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let status = head[0].split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("not a status line: {}", head[0])))?;
        let header = |name: &str| {
            let value = |line: &String| {
                let (found, value) = line.split_once(':')?;
                found.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
            };
            head.iter().skip(1).find_map(value)
        };
        let length = header("content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        stream.read_exact(&mut body)?;
        let closes = header("connection").is_some_and(|value| value == "close");
        Ok(HttpResponse { status, body: String::from_utf8_lossy(&body).into_owned(), closes })
    }
}

/// Reads the lines up to an empty one. Returns `None` if the connection is closed.
fn read_head(stream: &mut BufReader<TcpStream>) -> io::Result<Option<Vec<String>>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        match line.trim_end() {
            "" if lines.is_empty() => {}
            "" => return Ok(Some(lines)),
            line => lines.push(line.to_owned()),
        }
    }
}

/// A server in a pod that answers each request with its method and target.
pub struct PodServer {
    received: Arc<AtomicUsize>,
    stopped: Arc<AtomicBool>,
}

impl PodServer {
    pub fn start(namespace: &str, address: &str) -> PodServer {
        let netns = Netns::open(format!("/run/netns/{namespace}")).unwrap();
        let listener = netns.run(|| TcpListener::bind(address)).unwrap().unwrap();
        listener.set_nonblocking(true).unwrap();
        let server = PodServer { received: Arc::default(), stopped: Arc::default() };
        let received = server.received.clone();
        let stopped = server.stopped.clone();
        std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let Ok((stream, _)) = listener.accept() else {
                    std::thread::sleep(ACCEPT_POLL_INTERVAL);
                    continue;
                };
                let received = received.clone();
                // A connection ends with Envoy or with the client.
                std::thread::spawn(move || serve(stream, &received));
            }
        });
        server
    }

    /// Returns the number of requests that have reached the server.
    pub fn received(&self) -> usize {
        self.received.load(Ordering::Relaxed)
    }
}

impl Drop for PodServer {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}

fn serve(stream: TcpStream, received: &AtomicUsize) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    while let Some(head) = read_head(&mut stream)? {
        received.fetch_add(1, Ordering::Relaxed);
        let body = head[0].strip_suffix(" HTTP/1.1").unwrap_or(&head[0]);
        let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        stream.get_mut().write_all(response.as_bytes())?;
    }
    Ok(())
}
