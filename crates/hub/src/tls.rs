//! TLS between hubs and nodes: both sides show certificates, and each checks the name in the other's.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};
use tortie_tls::{Expected, Reloading, TlsError, TlsFiles};

/// What both sides are told: their own certificate and key, who signs the other side's, and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub files: TlsFiles,
    pub expected: Expected,
}

/// All of these or none: half of it would be less than somebody meant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("TLS needs a key, a certificate, a CA and a common name or URI of the other side; {0} is missing")]
pub struct Incomplete(&'static str);

impl Identity {
    /// Empty is not given.
    pub fn new(
        key: &str,
        certificate: &str,
        ca: &str,
        common_name: &str,
        uri: &str,
    ) -> Result<Option<Identity>, Incomplete> {
        if [key, certificate, ca, common_name, uri].iter().all(|text| text.is_empty()) {
            return Ok(None);
        }
        let file = |path: &str, what| match path.is_empty() {
            true => Err(Incomplete(what)),
            false => Ok(PathBuf::from(path)),
        };
        let name = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let expected = Expected { common_name: name(common_name), uri: name(uri) };
        let files = TlsFiles {
            key: file(key, "the key")?,
            certificate: file(certificate, "the certificate")?,
            ca: Some(file(ca, "the CA")?),
        };
        match expected == Expected::default() {
            true => Err(Incomplete("the name")),
            false => Ok(Some(Identity { files, expected })),
        }
    }
}

#[derive(Debug)]
pub struct ServerTls {
    acceptor: Reloading<TlsAcceptor>,
    expected: Expected,
}

impl ServerTls {
    pub fn new(identity: Identity) -> Result<ServerTls, TlsError> {
        let make = |files: &TlsFiles| Ok(TlsAcceptor::from(Arc::new(files.server()?)));
        Ok(ServerTls { acceptor: Reloading::new(identity.files, make)?, expected: identity.expected })
    }

    pub async fn accept(&self, stream: TcpStream) -> io::Result<server::TlsStream<TcpStream>> {
        let stream = self.acceptor.get().accept(stream).await?;
        self.expected.check(stream.get_ref().1.peer_certificates()).map_err(io::Error::other)?;
        Ok(stream)
    }
}

#[derive(Debug)]
pub struct ClientTls {
    connector: Reloading<TlsConnector>,
    expected: Expected,
}

impl ClientTls {
    pub fn new(identity: Identity) -> Result<ClientTls, TlsError> {
        let make = |files: &TlsFiles| Ok(TlsConnector::from(Arc::new(files.client()?)));
        Ok(ClientTls { connector: Reloading::new(identity.files, make)?, expected: identity.expected })
    }

    pub async fn connect(
        &self,
        stream: TcpStream,
        address: SocketAddr,
    ) -> io::Result<client::TlsStream<TcpStream>> {
        let name = ServerName::IpAddress(address.ip().into());
        let stream = self.connector.get().connect(name, stream).await?;
        self.expected.check(stream.get_ref().1.peer_certificates()).map_err(io::Error::other)?;
        Ok(stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_an_identity_is_an_error_that_says_what_is_missing() {
        assert_eq!(Identity::new("", "", "", "", ""), Ok(None));
        assert!(Identity::new("k", "c", "a", "n", "").unwrap().is_some());
        assert!(Identity::new("k", "c", "a", "", "u").unwrap().is_some());
        for (missing, parts) in [
            ("the key", ["", "c", "a", "n", ""]),
            ("the certificate", ["k", "", "a", "n", ""]),
            ("the CA", ["k", "c", "", "n", ""]),
            ("the name", ["k", "c", "a", "", ""]),
        ] {
            let [key, certificate, ca, name, uri] = parts;
            let error = Identity::new(key, certificate, ca, name, uri).unwrap_err().to_string();
            assert!(error.contains(missing), "{error}");
        }
    }
}
