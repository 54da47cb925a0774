//! Certificates that a server issues to itself and renews: a CA that clients have to trust, and a server certificate
//! for the server's names. This module does no I/O: the caller stores the certificates and passes the time and the
//! trusted CAs.

use crate::names::common_name;
use crate::validity::{names_as_issuer, validity};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use time::OffsetDateTime;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;

/// Seconds by which certificates are backdated, because clocks differ.
const BACKDATE_SECONDS: i64 = 300;
/// Maximum number of CAs in the trust bundle: the current one and its predecessors.
const MAX_TRUSTED_AUTHORITIES: usize = 3;
/// Keys of a Secret with certificates, in the order of the fields of `SelfIssuedCertificates`.
const SECRET_KEYS: [&str; 4] = ["ca.crt", "ca.key", "tls.crt", "tls.key"];

/// Lifetimes of certificates. A certificate is renewed when two thirds of its lifetime have passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CertificateLifetimes {
    pub authority: Duration,
    pub certificate: Duration,
}

impl Default for CertificateLifetimes {
    fn default() -> CertificateLifetimes {
        let day = Duration::from_secs(24 * 3600);
        CertificateLifetimes { authority: day * 3650, certificate: day * 90 }
    }
}

/// Reason why a certificate cannot be issued.
#[derive(Debug, thiserror::Error)]
pub enum CertificateIssueError {
    #[error(transparent)]
    Signing(#[from] rcgen::Error),
    #[error(transparent)]
    Time(#[from] time::error::ComponentRange),
    #[error("the new authority cannot be read")]
    UnreadableAuthority,
    #[error("there is no authority to sign for clients")]
    NoAuthority,
}

/// The stored certificates and keys, in PEM.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SelfIssuedCertificates {
    /// CA certificates that clients have to trust, newest first.
    pub authorities: String,
    /// Key of the newest CA.
    pub authority_key: String,
    pub certificate: String,
    pub key: String,
}

/// Certificate and key of a client, in PEM.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ClientCertificate {
    pub certificate: String,
    pub key: String,
}

impl SelfIssuedCertificates {
    /// Reads the certificates from the data of a Secret; missing ones are empty.
    pub fn from_secret_data(data: &BTreeMap<String, String>) -> SelfIssuedCertificates {
        let [authorities, authority_key, certificate, key] =
            SECRET_KEYS.map(|key| data.get(key).cloned().unwrap_or_default());
        SelfIssuedCertificates { authorities, authority_key, certificate, key }
    }

    /// Returns the data of the Secret that stores the certificates.
    pub fn into_secret_data(self) -> BTreeMap<String, String> {
        let values = [self.authorities, self.authority_key, self.certificate, self.key];
        SECRET_KEYS.map(str::to_owned).into_iter().zip(values).collect()
    }

    /// Returns the certificates to store if they differ from `kept`. `trusted` is the CA bundle that clients
    /// currently use, `None` if there are no clients yet. A new CA signs certificates only once clients trust it.
    pub fn renewed(
        kept: &SelfIssuedCertificates,
        trusted: Option<&str>,
        names: &[String],
        lifetimes: CertificateLifetimes,
        now: i64,
    ) -> Result<Option<SelfIssuedCertificates>, CertificateIssueError> {
        let authorities = split_certificates(&kept.authorities);
        let own = split_certificates(&kept.certificate);
        let newest = authorities.first().filter(|_| kept.has_keys() && !is_over(&authorities, now));
        let (Some(newest), Some(certificate)) = (newest, own.first()) else {
            return SelfIssuedCertificates::new(names, lifetimes, now).map(Some);
        };
        if is_due(newest, now) {
            return kept.with_new_authority(&authorities, lifetimes, now).map(Some);
        }
        let is_trusted = trusted.is_none_or(|bundle| split_certificates(bundle).contains(newest));
        if is_trusted && (is_due(certificate, now) || !names_as_issuer(certificate, newest)) {
            return kept.with_new_certificate(newest, names, lifetimes, now).map(Some);
        }
        Ok(None)
    }

    fn has_keys(&self) -> bool {
        KeyPair::from_pem(&self.authority_key).is_ok() && KeyPair::from_pem(&self.key).is_ok()
    }

    fn new(
        names: &[String],
        lifetimes: CertificateLifetimes,
        now: i64,
    ) -> Result<SelfIssuedCertificates, CertificateIssueError> {
        let nothing = SelfIssuedCertificates::default();
        let with_authority = nothing.with_new_authority(&[], lifetimes, now)?;
        let authorities = split_certificates(&with_authority.authorities);
        let newest = authorities.first().ok_or(CertificateIssueError::UnreadableAuthority)?;
        with_authority.with_new_certificate(newest, names, lifetimes, now)
    }

    fn with_new_authority(
        &self,
        before: &[CertificateDer<'static>],
        lifetimes: CertificateLifetimes,
        now: i64,
    ) -> Result<SelfIssuedCertificates, CertificateIssueError> {
        let key = KeyPair::generate()?;
        // A unique name per CA: the issuer name identifies the CA that signed a certificate.
        let mut params = build_authority_params(&format!("tortie-own-ca@{now}"));
        set_validity(&mut params, now, now.saturating_add(convert_to_seconds(lifetimes.authority)))?;
        let mut authorities = params.self_signed(&key)?.pem();
        let still_good = before.iter().filter(|one| validity(one).is_some_and(|when| when.until > now));
        for authority in still_good.take(MAX_TRUSTED_AUTHORITIES - 1) {
            authorities.push_str(&pem(authority));
        }
        Ok(SelfIssuedCertificates { authorities, authority_key: key.serialize_pem(), ..self.clone() })
    }

    fn with_new_certificate(
        &self,
        authority: &CertificateDer<'_>,
        names: &[String],
        lifetimes: CertificateLifetimes,
        now: i64,
    ) -> Result<SelfIssuedCertificates, CertificateIssueError> {
        let purpose = ExtendedKeyUsagePurpose::ServerAuth;
        let (certificate, key) = self.sign(authority, names, purpose, lifetimes, now)?;
        Ok(SelfIssuedCertificates { certificate, key, ..self.clone() })
    }

    /// Issues a client certificate, unless `kept` is valid and signed by the newest CA.
    pub fn renewed_client(
        &self,
        kept: &ClientCertificate,
        name: &str,
        lifetimes: CertificateLifetimes,
        now: i64,
    ) -> Result<Option<ClientCertificate>, CertificateIssueError> {
        let authorities = split_certificates(&self.authorities);
        let newest = authorities.first().ok_or(CertificateIssueError::NoAuthority)?;
        let is_good = split_certificates(&kept.certificate).first().is_some_and(|certificate| {
            !is_due(certificate, now)
                && names_as_issuer(certificate, newest)
                && common_name(certificate).as_deref() == Some(name)
        });
        if is_good && KeyPair::from_pem(&kept.key).is_ok() {
            return Ok(None);
        }
        let purpose = ExtendedKeyUsagePurpose::ClientAuth;
        let (certificate, key) = self.sign(newest, &[name.to_owned()], purpose, lifetimes, now)?;
        Ok(Some(ClientCertificate { certificate, key }))
    }

    /// Issues a certificate and returns it with its key.
    fn sign(
        &self,
        authority: &CertificateDer<'_>,
        names: &[String],
        purpose: ExtendedKeyUsagePurpose,
        lifetimes: CertificateLifetimes,
        now: i64,
    ) -> Result<(String, String), CertificateIssueError> {
        let authority_key = KeyPair::from_pem(&self.authority_key)?;
        let params = build_authority_params(&common_name(authority).unwrap_or_default());
        let issuer = Issuer::from_params(&params, authority_key);
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = build_distinguished_name(names.first().map_or("", String::as_str));
        params.extended_key_usages = vec![purpose];
        params.use_authority_key_identifier_extension = true;
        let limit = validity(authority).map_or(now, |when| when.until);
        set_validity(
            &mut params,
            now,
            limit.min(now.saturating_add(convert_to_seconds(lifetimes.certificate))),
        )?;
        let certificate = params.signed_by(&key, &issuer)?;
        Ok((certificate.pem(), key.serialize_pem()))
    }
}

/// Omits the keys.
impl fmt::Debug for SelfIssuedCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SelfIssuedCertificates")
            .field("authorities", &self.authorities)
            .finish_non_exhaustive()
    }
}

/// Omits the keys.
impl fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCertificate").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

fn build_authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = build_distinguished_name(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn build_distinguished_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

fn set_validity(params: &mut CertificateParams, now: i64, until: i64) -> Result<(), CertificateIssueError> {
    params.not_before = OffsetDateTime::from_unix_timestamp(now - BACKDATE_SECONDS)?;
    params.not_after = OffsetDateTime::from_unix_timestamp(until)?;
    Ok(())
}

/// Returns whether two thirds of a certificate's lifetime have passed.
fn is_due(certificate: &[u8], now: i64) -> bool {
    validity(certificate).is_none_or(|when| {
        let from = when.from.saturating_add(BACKDATE_SECONDS);
        now >= from.saturating_add(when.until.saturating_sub(from) / 3 * 2)
    })
}

/// Returns whether all CAs have expired.
fn is_over(authorities: &[CertificateDer<'_>], now: i64) -> bool {
    !authorities.iter().any(|one| validity(one).is_some_and(|when| when.until > now))
}

fn split_certificates(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).filter_map(Result::ok).collect()
}

fn pem(certificate: &[u8]) -> String {
    let text = data_encoding::BASE64.encode(certificate);
    let lines: Vec<String> =
        text.as_bytes().chunks(64).map(|line| String::from_utf8_lossy(line).into_owned()).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

fn convert_to_seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
