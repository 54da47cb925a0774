//! Serves one interface: its sockets, its rate limit and its unsolicited router advertisements. Each interface has its own
//! sockets and task, so that a machine that floods its link delays only itself.

use crate::codec::frame::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use crate::lease::PortState;
use crate::metrics::DhcpMetrics;
use crate::rate_limit::RateLimiter;
use crate::respond::{ProcessedRequest, build_advertisement, respond};
use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tortie_dataplane::{FilterInstruction, HostLink, Netns, PacketSocket};

/// Kernel memory for frames that wait; a flood fills only this.
const RECEIVE_BUFFER_BYTES: usize = 64 << 10;
/// Longest frame that is processed. DHCP messages of clients are shorter than this even with all options.
const MAX_FRAME_BYTES: usize = 4096;
/// Frames processed before other tasks get their turn.
const MAX_BATCH_FRAMES: usize = 16;
/// Time for which an interface that exceeds its rate is not read; the kernel drops what does not fit in the buffer.
const THROTTLE_DELAY: Duration = Duration::from_millis(200);
/// Interval of unsolicited advertisements; a third of what RFC 4861 allows at most.
const ADVERTISEMENT_INTERVAL: Duration = Duration::from_secs(600);
/// The first advertisements follow quickly, as a machine may boot (RFC 4861, 6.2.4).
const INITIAL_ADVERTISEMENT_INTERVAL: Duration = Duration::from_secs(16);
const INITIAL_ADVERTISEMENTS: u32 = 3;

/// Operations of classic BPF.
const LOAD_BYTE: u16 = 0x30;
const LOAD_HALF: u16 = 0x28;
const LOAD_HALF_INDEXED: u16 = 0x48;
const LOAD_IP_HEADER_LENGTH: u16 = 0xb1;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_SET: u16 = 0x45;
const RETURN: u16 = 0x06;
const ACCEPT: FilterInstruction = (RETURN, 0, 0, 0xffff);
const DROP: FilterInstruction = (RETURN, 0, 0, 0);

/// Accepts UDP to port 67 that is not fragmented.
const DHCP4_FILTER: [FilterInstruction; 9] = [
    (LOAD_BYTE, 0, 0, 23),
    (JUMP_EQUAL, 0, 6, 17),
    (LOAD_HALF, 0, 0, 20),
    (JUMP_SET, 4, 0, 0x3fff),
    (LOAD_IP_HEADER_LENGTH, 0, 0, 14),
    (LOAD_HALF_INDEXED, 0, 0, 16),
    (JUMP_EQUAL, 0, 1, 67),
    ACCEPT,
    DROP,
];

/// Accepts UDP to port 547 and router solicitations, both without extension headers.
const IPV6_FILTER: [FilterInstruction; 9] = [
    (LOAD_BYTE, 0, 0, 20),
    (JUMP_EQUAL, 0, 2, 17),
    (LOAD_HALF, 0, 0, 56),
    (JUMP_EQUAL, 3, 4, 547),
    (JUMP_EQUAL, 0, 3, 58),
    (LOAD_BYTE, 0, 0, 54),
    (JUMP_EQUAL, 0, 1, 133),
    ACCEPT,
    DROP,
];

/// The sockets of an interface.
pub struct PortSockets {
    v4: Option<PacketSocket>,
    v6: Option<PacketSocket>,
}

impl PortSockets {
    /// Opens sockets for the families that the lease has.
    pub async fn open(
        netns: &Netns,
        link: &HostLink,
        state: &PortState,
    ) -> Result<PortSockets, tortie_dataplane::DataplaneError> {
        let mut sockets = PortSockets { v4: None, v6: None };
        if state.lease.v4.is_some() {
            let socket = PacketSocket::open(netns, link, ETHERTYPE_IPV4, &DHCP4_FILTER, RECEIVE_BUFFER_BYTES);
            sockets.v4 = Some(socket.await?);
        }
        if state.lease.v6.is_some() {
            let socket = PacketSocket::open(netns, link, ETHERTYPE_IPV6, &IPV6_FILTER, RECEIVE_BUFFER_BYTES);
            sockets.v6 = Some(socket.await?);
        }
        Ok(sockets)
    }
}

/// Serves an interface until the sender of its state is gone or the interface fails.
pub struct PortServer {
    sockets: PortSockets,
    state: watch::Receiver<Arc<PortState>>,
    metrics: Arc<DhcpMetrics>,
    limiter: RateLimiter,
    reply: Vec<u8>,
    /// Advertisements until the interval becomes long.
    initial_advertisements: u32,
}

enum PortEvent {
    Frames4(io::Result<()>),
    Frames6(io::Result<()>),
    Changed(bool),
    AdvertisementDue,
}

impl PortServer {
    pub fn new(
        sockets: PortSockets,
        state: watch::Receiver<Arc<PortState>>,
        metrics: Arc<DhcpMetrics>,
        requests_per_second: u32,
    ) -> PortServer {
        let limiter = RateLimiter::new(requests_per_second, requests_per_second * 2, Instant::now());
        let initial_advertisements = INITIAL_ADVERTISEMENTS;
        PortServer { sockets, state, metrics, limiter, reply: Vec::new(), initial_advertisements }
    }

    pub async fn serve(mut self) -> io::Result<()> {
        let mut next_advertisement = tokio::time::Instant::now();
        loop {
            let event = tokio::select! {
                ready = wait_readable(self.sockets.v4.as_ref()) => PortEvent::Frames4(ready),
                ready = wait_readable(self.sockets.v6.as_ref()) => PortEvent::Frames6(ready),
                changed = self.state.changed() => PortEvent::Changed(changed.is_ok()),
                () = tokio::time::sleep_until(next_advertisement), if self.sockets.v6.is_some() => {
                    PortEvent::AdvertisementDue
                }
            };
            let is_throttled = match event {
                PortEvent::Frames4(ready) => {
                    ready?;
                    self.process(false)?
                }
                PortEvent::Frames6(ready) => {
                    ready?;
                    self.process(true)?
                }
                PortEvent::Changed(false) => return Ok(()),
                PortEvent::Changed(true) => {
                    // Machines learn of a new MTU or DNS server at once.
                    self.initial_advertisements = INITIAL_ADVERTISEMENTS;
                    next_advertisement = tokio::time::Instant::now();
                    false
                }
                PortEvent::AdvertisementDue => {
                    next_advertisement = tokio::time::Instant::now() + self.advertise();
                    false
                }
            };
            if is_throttled {
                tokio::time::sleep(THROTTLE_DELAY).await;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Processes frames that have arrived. Returns whether the interface exceeds its rate.
    fn process(&mut self, is_v6: bool) -> io::Result<bool> {
        let socket = if is_v6 { &self.sockets.v6 } else { &self.sockets.v4 };
        let Some(socket) = socket else { return Ok(false) };
        let state = self.state.borrow().clone();
        let mut is_throttled = false;
        let mut buffer = [0; MAX_FRAME_BYTES];
        for _ in 0..MAX_BATCH_FRAMES {
            let Some(frame) = socket.receive(&mut buffer)? else { return Ok(is_throttled) };
            if !self.limiter.take(Instant::now()) {
                self.metrics.throttled.inc();
                is_throttled = true;
                continue;
            }
            match respond(frame, &state, &mut self.reply) {
                Ok(ProcessedRequest { request, reply, is_truncated }) => {
                    self.metrics.count_request(request, reply);
                    if is_truncated {
                        self.metrics.truncated.inc();
                    }
                    if reply.is_some() && socket.send(&self.reply).is_err() {
                        self.metrics.send_failures.inc();
                    }
                }
                Err(reason) => self.metrics.count_rejected(reason),
            }
        }
        Ok(is_throttled)
    }

    /// Sends an unsolicited advertisement. Returns the time until the next one.
    fn advertise(&mut self) -> Duration {
        let state = self.state.borrow().clone();
        if let Some(socket) = &self.sockets.v6
            && build_advertisement(&state, &mut self.reply).is_ok()
        {
            match socket.send(&self.reply) {
                Ok(()) => self.metrics.advertisements.inc(),
                Err(_) => self.metrics.send_failures.inc(),
            };
        }
        if self.initial_advertisements == 0 {
            return ADVERTISEMENT_INTERVAL;
        }
        self.initial_advertisements -= 1;
        INITIAL_ADVERTISEMENT_INTERVAL
    }
}

async fn wait_readable(socket: Option<&PacketSocket>) -> io::Result<()> {
    match socket {
        Some(socket) => socket.readable().await,
        None => pending().await,
    }
}
