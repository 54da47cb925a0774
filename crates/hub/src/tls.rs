//! Mutual TLS between hubs and nodes: each side checks the authority and the name of the other's certificate.

use crate::certificates::{HUB_NAME, NODE_NAME, NodeCertificates};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};
use tortie_tls::{ExpectedPeerNames, TlsError, TlsFiles, TlsReloader};

/// Limit of rustls' send buffer for a client that does not read.
const MAX_TLS_BUFFER_BYTES: usize = 16 << 10;

/// TLS settings of either side: own certificate and key, the CA of the peer's certificate and the peer's expected
/// name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubTlsIdentity {
    pub files: TlsFiles,
    pub expected: ExpectedPeerNames,
}

/// Error of a partial TLS configuration: a part of it would give less protection than the operator intended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("TLS needs a key, a certificate, a CA and a common name or URI of the other side; {0} is missing")]
pub struct IncompleteTlsIdentity(&'static str);

impl HubTlsIdentity {
    /// Builds the identity from its settings, where an empty string means not set. Returns `None` if none is set.
    pub fn new(
        key: &str,
        certificate: &str,
        ca: &str,
        common_name: &str,
        uri: &str,
    ) -> Result<Option<HubTlsIdentity>, IncompleteTlsIdentity> {
        if [key, certificate, ca, common_name, uri].iter().all(|text| text.is_empty()) {
            return Ok(None);
        }
        for (value, what) in [(key, "the key"), (certificate, "the certificate"), (ca, "the CA")] {
            if value.is_empty() {
                return Err(IncompleteTlsIdentity(what));
            }
        }
        if common_name.is_empty() && uri.is_empty() {
            return Err(IncompleteTlsIdentity("the name"));
        }
        let [common_name, uri] = [common_name, uri].map(|name| (!name.is_empty()).then(|| name.to_owned()));
        Ok(Some(HubTlsIdentity {
            files: TlsFiles { key: key.into(), certificate: certificate.into(), ca: Some(ca.into()) },
            expected: ExpectedPeerNames { common_name, uri },
        }))
    }
}

#[derive(Debug)]
pub struct ServerTls {
    acceptor: AcceptorSource,
    expected: ExpectedPeerNames,
}

#[derive(Debug)]
enum AcceptorSource {
    Files(TlsReloader<TlsAcceptor>),
    /// Certificates issued by the hubs; `None` until they exist.
    Own(watch::Receiver<Option<Arc<ServerConfig>>>),
}

impl ServerTls {
    pub fn new(identity: HubTlsIdentity) -> Result<ServerTls, TlsError> {
        let reloader =
            TlsReloader::new(identity.files, |files| Ok(TlsAcceptor::from(Arc::new(files.server()?))))?;
        Ok(ServerTls { acceptor: AcceptorSource::Files(reloader), expected: identity.expected })
    }

    /// Returns the TLS of a server that uses the certificate issued by the hubs, and expects the one issued for nodes.
    pub fn with_issued_certificate(config: watch::Receiver<Option<Arc<ServerConfig>>>) -> ServerTls {
        ServerTls { acceptor: AcceptorSource::Own(config), expected: expect_common_name(NODE_NAME) }
    }

    pub async fn accept(&self, stream: TcpStream) -> io::Result<server::TlsStream<TcpStream>> {
        let acceptor = match &self.acceptor {
            AcceptorSource::Files(files) => Some(files.get()),
            AcceptorSource::Own(own) => own.borrow().clone().map(TlsAcceptor::from),
        };
        let acceptor = acceptor.ok_or_else(|| io::Error::other("this hub has no certificate yet"))?;
        let mut stream = acceptor.accept(stream).await?;
        stream.get_mut().1.set_buffer_limit(Some(MAX_TLS_BUFFER_BYTES));
        self.expected.check(stream.get_ref().1.peer_certificates()).map_err(io::Error::other)?;
        Ok(stream)
    }
}

fn expect_common_name(common_name: &str) -> ExpectedPeerNames {
    ExpectedPeerNames { common_name: Some(common_name.to_owned()), uri: None }
}

#[derive(Debug)]
pub struct ClientTls {
    connector: ConnectorSource,
    expected: ExpectedPeerNames,
}

#[derive(Debug)]
enum ConnectorSource {
    Files(TlsReloader<TlsConnector>),
    Own(Box<NodeCertificates>),
}

impl ClientTls {
    pub fn new(identity: HubTlsIdentity) -> Result<ClientTls, TlsError> {
        let reloader =
            TlsReloader::new(identity.files, |files| Ok(TlsConnector::from(Arc::new(files.client()?))))?;
        Ok(ClientTls { connector: ConnectorSource::Files(reloader), expected: identity.expected })
    }

    /// Returns the TLS of a client that uses the certificate issued for nodes, and expects the one issued for hubs.
    pub fn with_issued_certificate(certificates: NodeCertificates) -> ClientTls {
        ClientTls {
            connector: ConnectorSource::Own(Box::new(certificates)),
            expected: expect_common_name(HUB_NAME),
        }
    }

    pub async fn connect(
        &self,
        stream: TcpStream,
        address: SocketAddr,
    ) -> io::Result<client::TlsStream<TcpStream>> {
        let connector = match &self.connector {
            ConnectorSource::Files(files) => files.get(),
            ConnectorSource::Own(own) => own.config().await.map_err(io::Error::other)?.into(),
        };
        let name = ServerName::IpAddress(address.ip().into());
        let stream = connector.connect(name, stream).await?;
        self.expected.check(stream.get_ref().1.peer_certificates()).map_err(io::Error::other)?;
        Ok(stream)
    }

    /// Records that the hub has accepted the certificate of the last connection.
    pub async fn set_accepted(&self) {
        if let ConnectorSource::Own(own) = &self.connector {
            own.set_accepted().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_identity_names_what_is_missing() {
        assert_eq!(HubTlsIdentity::new("", "", "", "", ""), Ok(None));
        assert!(HubTlsIdentity::new("k", "c", "a", "n", "").unwrap().is_some());
        assert!(HubTlsIdentity::new("k", "c", "a", "", "u").unwrap().is_some());
        for (missing, parts) in [
            ("the key", ["", "c", "a", "n", ""]),
            ("the certificate", ["k", "", "a", "n", ""]),
            ("the CA", ["k", "c", "", "n", ""]),
            ("the name", ["k", "c", "a", "", ""]),
        ] {
            let [key, certificate, ca, name, uri] = parts;
            let error = HubTlsIdentity::new(key, certificate, ca, name, uri).unwrap_err().to_string();
            assert!(error.contains(missing), "{error}");
        }
    }
}
