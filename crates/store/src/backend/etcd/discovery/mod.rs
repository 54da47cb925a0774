//! Discovery of etcd endpoints through the DNS SRV records of a domain, as in etcd's own clients.
//!
//! Nothing else needs SRV lookups, so the queries go directly to the name servers of the system, without a resolver
//! library.

#[doc(hidden)]
pub mod message;

use crate::config::EtcdEndpoint;
use crate::{StoreError, StoreResult};
use message::{SrvRecord, SrvResponse};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};

const RESOLV_CONF: &str = "/etc/resolv.conf";
const DNS_PORT: u16 = 53;
const MAX_UDP_BYTES: usize = 4096;

/// Prefix of the SRV name, and whether the endpoints found there use TLS.
const SRV_SERVICES: [(&str, bool); 2] = [("_etcd-client-ssl._tcp", true), ("_etcd-client._tcp", false)];

/// Returns the endpoints of a domain: those with TLS first, each group sorted by priority and weight.
pub async fn endpoints(domain: &str, limit: Duration) -> StoreResult<Vec<EtcdEndpoint>> {
    let text = tokio::fs::read_to_string(RESOLV_CONF).await.unwrap_or_default();
    look_up_endpoints(domain, &name_servers(&text), limit).await
}

async fn look_up_endpoints(
    domain: &str,
    servers: &[SocketAddr],
    limit: Duration,
) -> StoreResult<Vec<EtcdEndpoint>> {
    let mut endpoints = Vec::new();
    let mut trouble = "no server is named there".to_owned();
    for (service, tls) in SRV_SERVICES {
        match tokio::time::timeout(limit, lookup(&name(service, domain), servers, limit)).await {
            Ok(Ok(found)) => endpoints.extend(found.into_iter().map(|service| service.endpoint(tls))),
            Ok(Err(error)) => trouble = error.to_string(),
            Err(_) => trouble = format!("no name server answers within {limit:?}"),
        }
    }
    if !endpoints.is_empty() {
        return Ok(endpoints);
    }
    Err(StoreError::Datastore(format!(
        "etcdDiscoverySrv (ETCD_DISCOVERY_SRV) '{domain}': {trouble}; check the SRV records of {} and {}",
        name(SRV_SERVICES[0].0, domain),
        name(SRV_SERVICES[1].0, domain)
    )))
}

fn name(service: &str, domain: &str) -> String {
    format!("{service}.{}", domain.trim_end_matches('.'))
}

impl SrvRecord {
    fn endpoint(self, tls: bool) -> EtcdEndpoint {
        EtcdEndpoint::Tcp { host: self.target, port: self.port, tls }
    }
}

fn name_servers(resolv_conf: &str) -> Vec<SocketAddr> {
    // Addresses with an IPv6 zone are ignored: link-local name servers are not supported.
    let texts = resolv_conf.lines().filter_map(|line| line.strip_prefix("nameserver"));
    let addresses = texts.filter_map(|text| text.trim().parse::<IpAddr>().ok());
    let found: Vec<SocketAddr> = addresses.map(|address| SocketAddr::new(address, DNS_PORT)).collect();
    if found.is_empty() { vec![SocketAddr::new(Ipv4Addr::LOCALHOST.into(), DNS_PORT)] } else { found }
}

/// Queries the name servers in turn and returns the first response.
async fn lookup(name: &str, servers: &[SocketAddr], limit: Duration) -> io::Result<Vec<SrvRecord>> {
    let share = limit / u32::try_from(servers.len()).unwrap_or(u32::MAX).max(1);
    let mut last = io::Error::other("there is no name server");
    for server in servers {
        match tokio::time::timeout(share, ask(name, *server)).await {
            Ok(Ok(services)) => return Ok(services),
            Ok(Err(error)) => last = io::Error::new(error.kind(), format!("name server {server}: {error}")),
            Err(_) => last = io::Error::other(format!("name server {server} does not answer")),
        }
    }
    Err(last)
}

async fn ask(name: &str, server: SocketAddr) -> io::Result<Vec<SrvRecord>> {
    let id = rand::random();
    let question =
        message::question(id, name).ok_or_else(|| io::Error::other(format!("'{name}' is no domain")))?;
    let local = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind(SocketAddr::new(local, 0)).await?;
    socket.connect(server).await?;
    socket.send(&question).await?;
    let mut buffer = vec![0; MAX_UDP_BYTES];
    let answer = loop {
        let length = socket.recv(&mut buffer).await?;
        // Anything else is late or forged: continue waiting.
        if let Some(answer) = buffer.get(..length).and_then(|bytes| message::answer(id, name, bytes)) {
            break answer;
        }
    };
    match answer {
        SrvResponse::Services(services) => Ok(services),
        SrvResponse::Refused(code) => Err(io::Error::other(format!("refuses the question (code {code})"))),
        SrvResponse::Truncated => ask_at_length(id, name, &question, server).await,
    }
}

/// Repeats a query over TCP, where the response is not truncated.
async fn ask_at_length(
    id: u16,
    name: &str,
    question: &[u8],
    server: SocketAddr,
) -> io::Result<Vec<SrvRecord>> {
    let mut stream = TcpStream::connect(server).await?;
    stream.write_u16(u16::try_from(question.len()).map_err(io::Error::other)?).await?;
    stream.write_all(question).await?;
    let mut bytes = vec![0; stream.read_u16().await?.into()];
    stream.read_exact(&mut bytes).await?;
    match message::answer(id, name, &bytes) {
        Some(SrvResponse::Services(services)) => Ok(services),
        _ => Err(io::Error::other("gives an answer that makes no sense")),
    }
}

#[cfg(test)]
mod tests;
