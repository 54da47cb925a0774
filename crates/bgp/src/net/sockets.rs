//! Listening and connecting sockets in the network namespace of the speaker.

use super::options::{set_min_ttl, set_password};
use crate::config::SpeakerConfig;
use crate::core::DialRequest;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;

/// Creates one socket. Must be called in the namespace in which the socket is to live.
pub type SocketConstructor = Box<dyn FnOnce() -> io::Result<Socket> + Send>;

/// Creates sockets in a network namespace.
#[derive(Clone)]
pub struct SocketFactory {
    enter: Arc<dyn Fn(SocketConstructor) -> io::Result<Socket> + Send + Sync>,
}

impl SocketFactory {
    /// Creates sockets in the namespace of the process.
    pub fn here() -> SocketFactory {
        SocketFactory::inside(|make| make())
    }

    /// Creates sockets in the namespace in which `enter` calls its argument. A socket stays in the namespace in which
    /// it was created.
    pub fn inside(
        enter: impl Fn(SocketConstructor) -> io::Result<Socket> + Send + Sync + 'static,
    ) -> SocketFactory {
        SocketFactory { enter: Arc::new(enter) }
    }

    async fn stream(&self, address: IpAddr) -> io::Result<Socket> {
        let domain = if address.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
        let enter = self.enter.clone();
        let make: SocketConstructor =
            Box::new(move || Socket::new(domain, Type::STREAM, Some(Protocol::TCP)));
        let socket = tokio::task::spawn_blocking(move || enter(make)).await.map_err(io::Error::other)??;
        socket.set_nonblocking(true)?;
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        Ok(socket)
    }

    pub async fn listen(&self, address: SocketAddr, config: &SpeakerConfig) -> io::Result<TcpListener> {
        let socket = self.stream(address.ip()).await?;
        socket.bind(&SockAddr::from(address))?;
        set_listener_passwords(&socket, address, None, config)?;
        socket.listen(1024)?;
        TcpListener::from_std(socket.into())
    }

    /// Makes a connection. Returns `None` if the attempt was abandoned before the host of the peer had answered.
    pub async fn dial(
        &self,
        dial: &DialRequest,
        give_up: oneshot::Receiver<()>,
    ) -> io::Result<Option<TcpStream>> {
        let socket = self.stream(dial.to.ip()).await?;
        if let Some(from) = dial.from {
            // With port 0, several connections to different peers can use the same source address.
            socket.bind(&SockAddr::from(SocketAddr::new(from, 0)))?;
        }
        if dial.password.is_some() {
            set_password(&socket, dial.to.ip(), dial.password.as_deref())?;
        }
        if let Some(hops) = dial.ttl_security {
            set_ttl_security(&socket, dial.to.ip(), hops)?;
        }
        let observed = socket.try_clone()?;
        let mut connect = pin!(TcpSocket::from_std_stream(socket.into()).connect(dial.to));
        let stream = tokio::select! {
            biased;
            stream = &mut connect => stream?,
            Ok(()) = give_up => {
                if observed.peer_addr().is_err() {
                    return Ok(None);
                }
                // The handshake is complete: the host of the peer has a connection and will deliver it to the peer.
                connect.await?
            }
        };
        stream.set_nodelay(true)?;
        Ok(Some(stream))
    }
}

/// Sets the passwords of all peers on a listening socket and removes those of `before` that are no longer configured.
pub fn set_listener_passwords(
    socket: &impl std::os::fd::AsFd,
    address: SocketAddr,
    before: Option<&SpeakerConfig>,
    config: &SpeakerConfig,
) -> io::Result<()> {
    let passwords = |config: &SpeakerConfig| {
        let peers = config.peers.values().filter(|peer| peer.address.is_ipv4() == address.is_ipv4());
        peers
            .filter_map(|peer| Some((peer.address, peer.password.clone()?)))
            .collect::<std::collections::BTreeMap<_, _>>()
    };
    let old = before.map(passwords).unwrap_or_default();
    let new = passwords(config);
    for peer in old.keys().filter(|peer| !new.contains_key(peer)) {
        set_password(socket, *peer, None)?;
    }
    for (peer, password) in &new {
        if old.get(peer) != Some(password) {
            set_password(socket, *peer, Some(password))?;
        }
    }
    // The SYN-ACK must be sent with TTL 255 like everything after it.
    if config.peers.values().any(|peer| peer.ttl_security.is_some()) {
        set_ttl(socket, address.ip())?;
    }
    Ok(())
}

/// Sends with TTL 255 and accepts only packets that were sent with it from at most `hops` hops away (RFC 5082).
pub fn set_ttl_security(socket: &impl std::os::fd::AsFd, peer: IpAddr, hops: u8) -> io::Result<()> {
    set_ttl(socket, peer)?;
    set_min_ttl(socket, peer, hops)
}

fn set_ttl(socket: &impl std::os::fd::AsFd, address: IpAddr) -> io::Result<()> {
    let socket = socket2::SockRef::from(socket);
    match address {
        IpAddr::V4(_) => socket.set_ttl_v4(255),
        IpAddr::V6(_) => socket.set_unicast_hops_v6(255),
    }
}
