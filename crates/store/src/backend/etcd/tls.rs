//! TLS configuration of the etcd client: rustls with aws-lc-rs, TLS 1.2 and 1.3.

use crate::config::{TlsPolicy, TlsSettings};
use crate::{StoreError, StoreResult};
use std::sync::Arc;
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion, version};

const ALPN_H2: &[u8] = b"h2";

impl TlsPolicy {
    fn versions(&self) -> StoreResult<Vec<&'static SupportedProtocolVersion>> {
        match self.min_version.as_str() {
            "" | "VersionTLS12" | "1.2" => Ok(vec![&version::TLS13, &version::TLS12]),
            "VersionTLS13" | "1.3" => Ok(vec![&version::TLS13]),
            other => Err(StoreError::Config(format!("TLS_MIN_VERSION = '{other}' is not one of 1.2, 1.3"))),
        }
    }

    /// Returns a provider with the configured cipher suites, given by their IANA names. The suites of TLS 1.3 are
    /// always kept.
    fn provider(&self) -> StoreResult<CryptoProvider> {
        let mut provider = aws_lc_rs::default_provider();
        if self.cipher_suites.is_empty() {
            return Ok(provider);
        }
        let mut wanted = Vec::new();
        for name in self.cipher_suites.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let known = provider.cipher_suites.iter().find(|suite| convert_name(suite.suite()) == name);
            wanted.push(*known.ok_or_else(|| {
                StoreError::Config(format!("TLS_CIPHER_SUITES names '{name}', which is unknown or not safe"))
            })?);
        }
        provider.cipher_suites.retain(|suite| suite.tls13().is_some() || wanted.contains(suite));
        Ok(provider)
    }
}

/// Returns the IANA name of a suite: rustls writes `TLS13_AES_128_GCM_SHA256` for `TLS_AES_128_GCM_SHA256`.
fn convert_name(suite: tokio_rustls::rustls::CipherSuite) -> String {
    suite.as_str().unwrap_or_default().replace("TLS13_", "TLS_")
}

/// Returns the client configuration. `used` is whether any endpoint uses TLS: the system's certificates are loaded only
/// then, because loading them takes longer than most commands.
pub fn client_config(
    settings: &TlsSettings,
    policy: &TlsPolicy,
    used: bool,
) -> StoreResult<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    match &settings.ca {
        Some(pem) => {
            for certificate in read_certificates("etcdCACert", pem)? {
                roots
                    .add(certificate)
                    .map_err(|e| StoreError::Config(format!("etcdCACert cannot be used: {e}")))?;
            }
        }
        None if used => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        None => {}
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(policy.provider()?))
        .with_protocol_versions(&policy.versions()?)
        .map_err(|e| StoreError::Config(format!("TLS settings: {e}")))?
        .with_root_certificates(roots);
    let mut config = match &settings.identity {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let key = PrivateKeyDer::from_pem_slice(key)
                .map_err(|e| StoreError::Config(format!("etcdKey holds no PEM private key: {e}")))?;
            builder
                .with_client_auth_cert(read_certificates("etcdCert", cert)?, key)
                .map_err(|e| StoreError::Config(format!("etcdCert and etcdKey do not go together: {e}")))?
        }
    };
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    Ok(Arc::new(config))
}

fn read_certificates(setting: &str, pem: &[u8]) -> StoreResult<Vec<CertificateDer<'static>>> {
    let found: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(StoreError::Config(format!("{setting} holds no PEM certificate"))),
        Err(error) => Err(StoreError::Config(format!("{setting} is not PEM: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_is_checked() {
        let policy =
            |min: &str, suites: &str| TlsPolicy { min_version: min.into(), cipher_suites: suites.into() };
        let build = |policy: &TlsPolicy| client_config(&TlsSettings::default(), policy, true);
        assert!(build(&policy("1.3", "TLS_AES_128_GCM_SHA256")).is_ok());
        assert!(build(&policy("", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256")).is_ok());
        assert!(build(&policy("1.0", "")).unwrap_err().to_string().contains("TLS_MIN_VERSION = '1.0'"));
        assert!(build(&policy("", "TLS_RSA_WITH_RC4_128_SHA")).unwrap_err().to_string().contains("RC4"));
    }

    #[test]
    fn bad_pem_names_the_setting() {
        let ca = TlsSettings { ca: Some(b"nonsense".to_vec()), identity: None };
        let error = client_config(&ca, &TlsPolicy::default(), true).unwrap_err();
        assert_eq!(error.to_string(), "etcdCACert holds no PEM certificate");
        let pair = TlsSettings { ca: None, identity: Some((b"x".to_vec(), b"y".to_vec())) };
        let error = client_config(&pair, &TlsPolicy::default(), true).unwrap_err();
        assert!(error.to_string().starts_with("etcdKey holds no PEM private key"), "{error}");
    }
}
