//! Identifiers of IP sets, derived from their content, so that every node computes the same identifier.

use super::Selector;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha224};

impl Selector {
    /// Returns the identifier of the set of addresses whose labels match.
    pub fn id(&self) -> String {
        unique_id("s", &self.to_string())
    }
}

/// Returns the identifier of the set of address and port pairs of matching endpoints with a port of this
/// name. `protocol` is `tcp`, `udp`, `sctp` or `any`.
pub fn named_port_id(selector: &Selector, protocol: &str, port: &str) -> String {
    unique_id("n", &format!("{},{protocol},{port}", selector.id()))
}

/// Returns the identifier of the set of address and port pairs of a service's endpoints.
pub fn service_id(namespace: &str, name: &str) -> String {
    unique_id("svc", &format!("{namespace}/{name}"))
}

/// Returns the identifier of the set of addresses of a service's endpoints.
pub fn service_ip_id(namespace: &str, name: &str) -> String {
    unique_id("svcnoport", &format!("{namespace}/{name}"))
}

fn unique_id(prefix: &str, content: &str) -> String {
    let digest = Sha224::new().chain_update(prefix).chain_update(":").chain_update(content).finalize();
    format!("{prefix}:{}", URL_SAFE_NO_PAD.encode(digest))
}
