//! TCP connections and UDP datagrams between pods, made inside their network namespaces.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tortie_dataplane::Netns;
use tortie_testkit::CONDITION_TIMEOUT;
use tortie_testkit::bind_when_free;

/// Timeout of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const SEND_INTERVAL: Duration = Duration::from_millis(5);
/// Timeout of a datagram in a stream; long, because a delayed packet on a busy machine must not count as lost.
const STREAM_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportPort {
    Tcp(u16),
    Udp(u16),
}

impl TransportPort {
    /// Returns the port in the syntax of `tortie explain`.
    pub fn text(self) -> String {
        match self {
            TransportPort::Tcp(port) => format!("tcp/{port}"),
            TransportPort::Udp(port) => format!("udp/{port}"),
        }
    }

    /// Returns whether this port answers.
    pub fn answers(self, from: &Netns, address: IpAddr) -> bool {
        let answers = || match self {
            TransportPort::Tcp(port) => {
                TcpStream::connect_timeout(&SocketAddr::new(address, port), ANSWER_TIMEOUT).is_ok()
            }
            TransportPort::Udp(port) => {
                let socket = UdpSocket::bind(any(address)).unwrap();
                socket.set_read_timeout(Some(ANSWER_TIMEOUT)).unwrap();
                echoed(&socket, SocketAddr::new(address, port), b"?")
            }
        };
        from.run(answers).unwrap()
    }
}

fn any(like: IpAddr) -> SocketAddr {
    SocketAddr::new(if like.is_ipv4() { IpAddr::from([0; 4]) } else { Ipv6Addr::UNSPECIFIED.into() }, 0)
}

fn echoed(socket: &UdpSocket, to: SocketAddr, sent: &[u8]) -> bool {
    let mut buffer = [0; 64];
    // Ignore the error, which may report that an earlier datagram was refused.
    let _ = socket.send_to(sent, to);
    let deadline = Instant::now() + socket.read_timeout().unwrap().unwrap_or(ANSWER_TIMEOUT);
    while Instant::now() < deadline {
        match socket.recv_from(&mut buffer) {
            Ok((length, _)) if &buffer[..length] == sent => return true,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return false,
            Err(_) => {}
        }
    }
    false
}

/// Returns how long the change takes, and the time from its start until the first datagram is answered.
pub fn first_answer(from: &Netns, address: IpAddr, port: u16, change: impl FnOnce()) -> [Duration; 2] {
    let socket = from.run(|| UdpSocket::bind(any(address))).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(2))).unwrap();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let answered = scope.spawn(|| {
            let to = SocketAddr::new(address, port);
            while !echoed(&socket, to, b"now") {
                assert!(begun.elapsed() < CONDITION_TIMEOUT, "no answer from {to}");
            }
            begun.elapsed()
        });
        change();
        [begun.elapsed(), answered.join().unwrap()]
    })
}

/// Servers on ports of a pod, stopped on drop.
pub struct EchoServers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl EchoServers {
    pub fn start(netns: &Netns, ports: &[TransportPort]) -> EchoServers {
        let stop = Arc::new(AtomicBool::new(false));
        let serve = |port: &TransportPort| {
            let stop = stop.clone();
            let all = |port: u16| SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
            match *port {
                TransportPort::Tcp(port) => {
                    let listener =
                        netns.run(|| bind_when_free(|| TcpListener::bind(all(port)))).unwrap().unwrap();
                    listener.set_nonblocking(true).unwrap();
                    std::thread::spawn(move || {
                        while !stop.load(Ordering::Relaxed) {
                            if listener.accept().is_err() {
                                std::thread::sleep(SEND_INTERVAL);
                            }
                        }
                    })
                }
                TransportPort::Udp(port) => {
                    let socket =
                        netns.run(|| bind_when_free(|| UdpSocket::bind(all(port)))).unwrap().unwrap();
                    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
                    std::thread::spawn(move || {
                        let mut buffer = [0; 64];
                        while !stop.load(Ordering::Relaxed) {
                            if let Ok((length, from)) = socket.recv_from(&mut buffer) {
                                let _ = socket.send_to(&buffer[..length], from);
                            }
                        }
                    })
                }
            }
        };
        let threads = ports.iter().map(serve).collect();
        EchoServers { stop, threads }
    }
}

impl Drop for EchoServers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Datagrams sent to an echo server one after the other until the stream is ended.
pub struct DatagramStream {
    stop: Arc<AtomicBool>,
    carried: Arc<AtomicU64>,
    thread: Option<JoinHandle<Option<u64>>>,
}

impl DatagramStream {
    pub fn start(from: &Netns, address: IpAddr, port: u16) -> DatagramStream {
        let socket = from.run(|| UdpSocket::bind(any(address))).unwrap().unwrap();
        socket.set_read_timeout(Some(STREAM_TIMEOUT)).unwrap();
        let (stop, carried) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counter) = (stop.clone(), carried.clone());
        let thread = std::thread::spawn(move || {
            let to = SocketAddr::new(address, port);
            while !stopped.load(Ordering::Relaxed) {
                let number = counter.load(Ordering::Relaxed);
                if !echoed(&socket, to, &number.to_be_bytes()) {
                    return Some(number);
                }
                counter.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(SEND_INTERVAL);
            }
            None
        });
        DatagramStream { stop, carried, thread: Some(thread) }
    }

    pub fn carried(&self) -> u64 {
        self.carried.load(Ordering::Relaxed)
    }

    /// Stops the stream and returns how many datagrams came back; panics if one was lost.
    pub fn end(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let lost = self.thread.take().unwrap().join().unwrap();
        assert_eq!(lost, None, "this datagram was lost");
        self.carried()
    }
}

impl Drop for DatagramStream {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
