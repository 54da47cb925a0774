//! Packet sockets of one interface: frames with their Ethernet header, before the kernel's IP stack and its rules see
//! them.

use crate::error::{DataplaneError, DataplaneResult};
use crate::failure::KernelObject;
use crate::link_monitor::HostLink;
use crate::netns::Netns;
use nix::sys::socket::{LinkAddr, MsgFlags, bind, recvfrom, send};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use std::io;
use std::os::fd::AsRawFd;
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// Instruction of a classic BPF filter: operation, jump if true, jump if false, operand.
pub type FilterInstruction = (u16, u8, u8, u32);

/// Tokio has no type for packet sockets; `UdpSocket` serves only to wait for readiness.
#[derive(Debug)]
pub struct PacketSocket {
    socket: UdpSocket,
    device: usize,
}

impl PacketSocket {
    /// Opens a socket that receives the frames of one EtherType that the filter accepts, but not those that the host
    /// sends itself.
    pub async fn open(
        netns: &Netns,
        link: &HostLink,
        ethertype: u16,
        filter: &[FilterInstruction],
        receive_buffer_bytes: usize,
    ) -> DataplaneResult<PacketSocket> {
        let address = link.address;
        let filter: Vec<SockFilter> =
            filter.iter().map(|(code, jt, jf, operand)| SockFilter::new(*code, *jt, *jf, *operand)).collect();
        let opened = netns
            .within(move || {
                // A socket of a particular protocol, unlike one of all protocols, costs nothing for frames that the
                // host sends to the interface.
                let protocol = Protocol::from(i32::from(ethertype.to_be()));
                let socket = Socket::new(Domain::PACKET, Type::RAW.nonblocking().cloexec(), Some(protocol))?;
                socket.attach_filter(&filter)?;
                socket.set_recv_buffer_size(receive_buffer_bytes)?;
                // The address has no protocol: the kernel keeps that of the socket.
                bind(socket.as_raw_fd(), &address)?;
                Ok(socket)
            })
            .await?;
        let socket = opened.and_then(|socket| UdpSocket::from_std(socket.into()));
        let socket = socket.map_err(|error: io::Error| DataplaneError::Kernel {
            object: KernelObject::KernelState("packet socket"),
            reason: error.to_string(),
        })?;
        Ok(PacketSocket { socket, device: address.ifindex() })
    }

    /// Waits for a frame. Returns an error if the interface is gone or down.
    pub async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await
    }

    /// Receives a frame, or returns `None` if the queue is empty. Frames that are longer than the buffer are truncated.
    pub fn receive<'b>(&self, buffer: &'b mut [u8]) -> io::Result<Option<&'b [u8]>> {
        loop {
            let received = self
                .socket
                .try_io(Interest::READABLE, || Ok(recvfrom::<LinkAddr>(self.socket.as_raw_fd(), buffer)?));
            match received {
                // Before it was bound, the socket received from all interfaces.
                Ok((_, Some(from))) if from.ifindex() != self.device => {}
                Ok((length, _)) => return Ok(buffer.get(..length)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends a frame. It is lost if the queue of the interface is full.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        send(self.socket.as_raw_fd(), frame, MsgFlags::MSG_DONTWAIT)?;
        Ok(())
    }
}
