//! Continuous streams of numbered packets between containers.

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use tortie_dataplane::Netns;
use tortie_testkit::bind_when_free;

/// Default destination port.
pub const STREAM_PORT: u16 = 4000;
/// Long enough for a receiver's buffer to cover the stalls of a busy machine.
const SEND_INTERVAL: Duration = Duration::from_millis(20);

/// A stream from one container to one address of another.
#[derive(Debug)]
pub struct NumberedStream {
    sent: Arc<AtomicU64>,
    arrived: Arc<Mutex<BTreeSet<u64>>>,
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

fn socket_in(namespace: &str, address: &str, port: u16) -> UdpSocket {
    Netns::open(namespace)
        .unwrap()
        .run(|| bind_when_free(|| UdpSocket::bind((address, port))))
        .unwrap()
        .unwrap()
}

impl NumberedStream {
    /// Starts a stream between two namespaces, given by their paths.
    pub fn start(from: &str, to: &str, address: &str, port: u16) -> NumberedStream {
        let any = if address.contains(':') { "::" } else { "0.0.0.0" };
        let (sender, receiver) = (socket_in(from, any, 0), socket_in(to, address, port));
        receiver.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        sender.set_nonblocking(true).unwrap();
        let (sent, ends) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let arrived = Arc::new(Mutex::new(BTreeSet::new()));
        let target = (address.to_owned(), port);
        let (counter, end) = (sent.clone(), ends.clone());
        let send = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                let number = counter.load(Ordering::Relaxed);
                // A packet that cannot be sent counts as lost.
                let _ = sender.send_to(&number.to_be_bytes(), &target);
                counter.store(number + 1, Ordering::Relaxed);
                std::thread::sleep(SEND_INTERVAL);
            }
        });
        let (heard, end) = (arrived.clone(), ends.clone());
        let receive = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                let mut packet = [0; 8];
                if receiver.recv(&mut packet).is_ok_and(|length| length == 8) {
                    heard.lock().unwrap().insert(u64::from_be_bytes(packet));
                }
            }
        });
        NumberedStream { sent, arrived, ends, threads: vec![send, receive] }
    }

    /// Returns the number of the next packet.
    pub fn position(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Returns how many packets of a range have arrived.
    pub fn arrived(&self, range: std::ops::Range<u64>) -> u64 {
        self.arrived.lock().unwrap().range(range).count() as u64
    }
}

impl Drop for NumberedStream {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
