//! Options of the server, and their checks.

use crate::error::DhcpError;
use crate::table::{LeaseSettings, is_domain};
use std::net::SocketAddr;
use std::ops::RangeInclusive;

/// Leases that are shorter than this would flood the server with renewals.
const LEASE_SECONDS: RangeInclusive<u32> = 60..=31_536_000;
const REQUESTS_PER_SECOND: RangeInclusive<u32> = 1..=10_000;
/// A region is part of the namespace `openstack-region-NAME`, which has at most 63 characters.
const MAX_REGION_BYTES: usize = 46;
const MAX_DNS_SERVERS: usize = 8;
const MAX_INTERFACE_PREFIXES: usize = 16;

#[derive(Clone, Debug)]
pub struct DhcpOptions {
    pub leases: LeaseSettings,
    /// Frames of one interface that are processed per second; twice as many in a burst.
    pub requests_per_second: u32,
    /// Address of the HTTP server for metrics and health.
    pub listen: Option<SocketAddr>,
}

impl DhcpOptions {
    pub fn check(&self) -> Result<(), DhcpError> {
        let refuse = |option, value: String, expected| Err(DhcpError::Option { option, value, expected });
        let LeaseSettings { host, region, interface_prefixes, lease_seconds, domain, dns_servers } =
            &self.leases;
        if host.is_empty() || host.len() > 253 || host.contains('/') {
            return refuse("--host", host.clone(), "the name of this host in Neutron");
        }
        let is_label = is_domain(region) && !region.contains('.') && region.len() <= MAX_REGION_BYTES;
        if !region.is_empty() && !is_label {
            return refuse("--region", region.clone(), "a DNS label of at most 46 characters");
        }
        let are_prefixes = (1..=MAX_INTERFACE_PREFIXES).contains(&interface_prefixes.len())
            && interface_prefixes.iter().all(|prefix| (1..=15).contains(&prefix.len()));
        if !are_prefixes {
            let value = interface_prefixes.join(",");
            return refuse("--interface-prefix", value, "one to 16 prefixes of one to 15 characters");
        }
        if !LEASE_SECONDS.contains(lease_seconds) {
            return refuse("--lease-time", lease_seconds.to_string(), "60 to 31536000 seconds");
        }
        if !domain.is_empty() && !is_domain(domain) {
            return refuse("--domain", domain.clone(), "a domain name such as cloud.example.org");
        }
        if dns_servers.len() > MAX_DNS_SERVERS {
            return refuse("--dns-server", dns_servers.len().to_string(), "at most 8 addresses");
        }
        if !REQUESTS_PER_SECOND.contains(&self.requests_per_second) {
            let value = self.requests_per_second.to_string();
            return refuse("--max-requests", value, "1 to 10000 requests per second");
        }
        Ok(())
    }
}
