//! The address that the console listens on, and the rule that only clients with certificates may connect from other hosts.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use tortie_http::{ListenerTlsFiles, TlsClientPolicy};

/// Where the console listens, and how its clients prove that they may use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConsoleListen {
    /// A Unix socket: the permissions of the file decide.
    Socket { path: PathBuf, group: Option<u32> },
    /// A loopback address: a link that is printed at start, valid once.
    Loopback(SocketAddr),
    /// Any address: a certificate that the CA signed.
    Certificates { address: SocketAddr, tls: ListenerTlsFiles },
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ListenError {
    #[error(
        "--listen {address}: the console does not serve {reason} without client certificates, because anybody who reaches \
         the address could use it: give --tls-cert, --tls-key and --client-ca, or listen on 127.0.0.1 and forward the port \
         with ssh"
    )]
    Exposed { address: SocketAddr, reason: &'static str },
    #[error("--tls-cert, --tls-key and --client-ca belong together: {missing} is missing")]
    IncompleteTls { missing: &'static str },
}

/// The certificate files of the command line.
#[derive(Clone, Debug, Default)]
pub struct TlsFileOptions {
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub client_ca: Option<PathBuf>,
}

impl ConsoleListen {
    /// Chooses how clients of a TCP address authenticate. Refuses addresses that other hosts reach without certificates.
    pub fn tcp(
        address: SocketAddr,
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
        client_ca: Option<PathBuf>,
    ) -> Result<ConsoleListen, ListenError> {
        let options = TlsFileOptions { certificate, key, client_ca };
        if let Some(tls) = options.resolve()? {
            return Ok(ConsoleListen::Certificates { address, tls });
        }
        if is_loopback(address.ip()) {
            return Ok(ConsoleListen::Loopback(address));
        }
        let reason =
            if address.ip().is_unspecified() { "all addresses" } else { "an address other than loopback" };
        Err(ListenError::Exposed { address, reason })
    }
}

impl TlsFileOptions {
    fn resolve(self) -> Result<Option<ListenerTlsFiles>, ListenError> {
        match (self.certificate, self.key, self.client_ca) {
            (None, None, None) => Ok(None),
            (Some(certificate), Some(key), Some(authority)) => {
                let clients = TlsClientPolicy::SignedBy { authority, or_none: false };
                Ok(Some(ListenerTlsFiles { certificate, key, clients }))
            }
            (None, _, _) => Err(ListenError::IncompleteTls { missing: "--tls-cert" }),
            (_, None, _) => Err(ListenError::IncompleteTls { missing: "--tls-key" }),
            (_, _, None) => Err(ListenError::IncompleteTls { missing: "--client-ca" }),
        }
    }
}

/// Returns whether only processes of this host reach the address; `::ffff:127.0.0.1` counts.
pub fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen(address: &str, files: [bool; 3]) -> Result<ConsoleListen, ListenError> {
        let [certificate, key, ca] = files.map(|given| given.then(|| PathBuf::from("f")));
        ConsoleListen::tcp(address.parse().unwrap(), certificate, key, ca)
    }

    #[test]
    fn other_hosts_need_client_certificates() {
        for address in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1", "[fe80::1]:1", "[::ffff:10.0.0.1]:1"] {
            let error = listen(address, [false; 3]).unwrap_err();
            assert!(matches!(error, ListenError::Exposed { .. }), "{error}");
            assert!(error.to_string().contains("--client-ca"), "{error}");
            assert!(matches!(listen(address, [true; 3]), Ok(ConsoleListen::Certificates { .. })));
        }
        for address in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(matches!(listen(address, [false; 3]), Ok(ConsoleListen::Loopback(_))), "{address}");
        }
    }

    #[test]
    fn incomplete_certificates_are_refused() {
        for (files, missing) in [
            ([false, true, true], "--tls-cert"),
            ([true, false, true], "--tls-key"),
            ([true, true, false], "--client-ca"),
        ] {
            assert_eq!(listen("127.0.0.1:1", files), Err(ListenError::IncompleteTls { missing }));
        }
    }
}
