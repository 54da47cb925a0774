//! Authentication settings of the cluster: the ConfigMap extension-apiserver-authentication defines which front proxy
//! and which client certificates are trusted.

use http::HeaderMap;
use percent_encoding::percent_decode_str;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::crypto::{
    CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
};
use tortie_store::StoreError;
use tortie_store::orchestrator::KubernetesUser;
use tortie_tls::{ClientCertificateMode, PemError, client_verifier};

pub const AUTHENTICATION_NAMESPACE: &str = "kube-system";
pub const AUTHENTICATION_CONFIG_MAP: &str = "extension-apiserver-authentication";
/// Maximum number of identity headers that are read.
const MAX_IDENTITY_HEADERS: usize = 256;

/// The parsed content of the ConfigMap.
#[derive(Debug, Default)]
pub struct ProxyTrust {
    /// Verifier of the front proxy's certificate.
    proxies: Option<Arc<dyn ClientCertVerifier>>,
    /// Allowed common names of the front proxy's certificate; any if empty.
    names: Vec<String>,
    user_headers: Vec<String>,
    uid_headers: Vec<String>,
    group_headers: Vec<String>,
    extra_prefixes: Vec<String>,
    /// Verifier of client certificates of users.
    clients: Option<Arc<dyn ClientCertVerifier>>,
}

/// Reason why the ConfigMap cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{key}: {error}")]
    List { key: &'static str, error: serde_json::Error },
    #[error("{key}: {error}")]
    Authorities { key: &'static str, error: PemError },
}

/// Holder of a client certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateHolder {
    /// The front proxy: its identity headers are trusted.
    Proxy,
    /// A user identified by the certificate.
    Client(KubernetesUser),
}

impl ProxyTrust {
    pub fn read(data: &BTreeMap<String, String>) -> Result<ProxyTrust, TrustError> {
        Ok(ProxyTrust {
            proxies: read_authorities(data, "requestheader-client-ca-file")?,
            names: read_list(data, "requestheader-allowed-names")?,
            user_headers: read_list(data, "requestheader-username-headers")?,
            uid_headers: read_list(data, "requestheader-uid-headers")?,
            group_headers: read_list(data, "requestheader-group-headers")?,
            extra_prefixes: read_list(data, "requestheader-extra-headers-prefix")?,
            clients: read_authorities(data, "client-ca-file")?,
        })
    }

    /// Returns the holder of a certificate chain; `None` if it is not trusted.
    pub fn identify_holder(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> Option<CertificateHolder> {
        let (end, intermediates) = chain.split_first()?;
        let [is_of_proxy, is_of_client] = [&self.proxies, &self.clients].map(|verifier| {
            verifier
                .as_ref()
                .is_some_and(|verifier| verifier.verify_client_cert(end, intermediates, now).is_ok())
        });
        let name = tortie_tls::common_name(end).unwrap_or_default();
        if is_of_proxy && (self.names.is_empty() || self.names.contains(&name)) {
            return Some(CertificateHolder::Proxy);
        }
        (is_of_client && !name.is_empty()).then(|| {
            let groups = tortie_tls::organisations(end);
            CertificateHolder::Client(KubernetesUser { name, groups, ..KubernetesUser::default() })
        })
    }

    /// Returns the user in the identity headers of the front proxy.
    pub fn read_user(&self, headers: &HeaderMap) -> Option<KubernetesUser> {
        let name = find_first_value(headers, &self.user_headers)?;
        let uid = find_first_value(headers, &self.uid_headers).unwrap_or_default();
        let mut groups = Vec::new();
        for header in &self.group_headers {
            let values = headers.get_all(header.as_str()).iter().take(MAX_IDENTITY_HEADERS);
            groups.extend(values.filter_map(|value| value.to_str().ok()).map(str::to_owned));
        }
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (header, value) in headers.iter().take(MAX_IDENTITY_HEADERS) {
            for prefix in &self.extra_prefixes {
                let key = header.as_str().strip_prefix(&prefix.to_ascii_lowercase());
                if let (Some(key), Ok(value)) = (key, value.to_str()) {
                    let key = percent_decode_str(key).decode_utf8_lossy().into_owned();
                    extra.entry(key).or_default().push(value.to_owned());
                }
            }
        }
        Some(KubernetesUser { name, uid, groups, extra })
    }
}

/// Returns the value of the first of these headers that is present and not empty.
fn find_first_value(headers: &HeaderMap, names: &[String]) -> Option<String> {
    let values = names.iter().filter_map(|name| headers.get(name.as_str())?.to_str().ok());
    values.map(str::trim).find(|value| !value.is_empty()).map(str::to_owned)
}

fn read_list(data: &BTreeMap<String, String>, key: &'static str) -> Result<Vec<String>, TrustError> {
    match data.get(key).filter(|text| !text.is_empty()) {
        None => Ok(Vec::new()),
        Some(text) => serde_json::from_str(text).map_err(|error| TrustError::List { key, error }),
    }
}

/// Returns a verifier for certificates signed by these authorities in PEM format; `None` without any.
fn read_authorities(
    data: &BTreeMap<String, String>,
    key: &'static str,
) -> Result<Option<Arc<dyn ClientCertVerifier>>, TrustError> {
    let Some(pem) = data.get(key).filter(|pem| !pem.trim().is_empty()) else { return Ok(None) };
    let verifier = client_verifier(pem.as_bytes(), ClientCertificateMode::Required);
    verifier.map(Some).map_err(|error| TrustError::Authorities { key, error })
}

/// The current authentication settings; updated while the server runs.
#[derive(Debug, Default)]
pub struct CurrentTrust(RwLock<Arc<ProxyTrust>>);

impl CurrentTrust {
    pub fn get(&self) -> Arc<ProxyTrust> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set(&self, trust: ProxyTrust) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(trust);
    }
}

/// Requests client certificates without requiring them, and accepts those that the current settings trust. Any other
/// certificate fails the handshake.
#[derive(Debug)]
pub struct OptionalCertificateVerifier {
    current: Arc<CurrentTrust>,
    provider: Arc<CryptoProvider>,
}

impl OptionalCertificateVerifier {
    pub fn new(current: Arc<CurrentTrust>) -> OptionalCertificateVerifier {
        OptionalCertificateVerifier { current, provider: Arc::new(aws_lc_rs::default_provider()) }
    }
}

impl ClientCertVerifier for OptionalCertificateVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let chain: Vec<CertificateDer<'_>> =
            std::iter::once(end_entity).chain(intermediates).cloned().collect();
        match self.current.get().identify_holder(&chain, now) {
            Some(_) => Ok(ClientCertVerified::assertion()),
            None => Err(Error::InvalidCertificate(CertificateError::UnknownIssuer)),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests;
