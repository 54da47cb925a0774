//! A TCP stream of 1 MiB between two namespaces.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;
use tortie_dataplane::Netns;
use tortie_testkit::bind_when_free;

pub const STREAM_BYTES: usize = 1 << 20;
const STREAM_TIMEOUT: Duration = Duration::from_secs(60);

/// Sends the stream and returns how many bytes arrive at `address`, which is in the namespace `to`.
pub fn stream(from: &str, to: &str, address: IpAddr) -> usize {
    let inside = |namespace: &str| Netns::open(format!("/run/netns/{namespace}")).unwrap();
    let address = SocketAddr::new(address, 7000);
    let listener = inside(to).run(|| bind_when_free(|| TcpListener::bind(address))).unwrap().unwrap();
    let reader = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(STREAM_TIMEOUT)).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        bytes.len()
    });
    let connect = || TcpStream::connect_timeout(&address, STREAM_TIMEOUT);
    let mut stream = inside(from).run(connect).unwrap().unwrap();
    stream.write_all(&vec![7; STREAM_BYTES]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    reader.join().unwrap()
}
