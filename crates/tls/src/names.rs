//! Names in X.509 certificates, read with a minimal DER parser, and the check of a peer certificate against expected
//! names.

use tokio_rustls::rustls::pki_types::CertificateDer;

const SEQUENCE_TAG: u8 = 0x30;
const BOOLEAN_TAG: u8 = 0x01;
const VERSION_TAG: u8 = 0xa0;
const EXTENSIONS_TAG: u8 = 0xa3;
const URI_TAG: u8 = 0x86;
const COMMON_NAME_OID: &[u8] = &[0x55, 0x04, 0x03];
const ORGANISATION_OID: &[u8] = &[0x55, 0x04, 0x0a];
const SUBJECT_ALT_NAME_OID: &[u8] = &[0x55, 0x1d, 0x11];

/// Names that the peer certificate may have. One match is enough. Without any, every certificate signed by the CA is
/// accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpectedPeerNames {
    pub common_name: Option<String>,
    pub uri: Option<String>,
}

/// Reason why a peer certificate is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerNameError {
    #[error("it shows no certificate")]
    NoCertificate,
    #[error("its certificate is for [{}], not for {}", .found.join(", "), .expected.join(" or "))]
    OtherName { found: Vec<String>, expected: Vec<String> },
}

impl ExpectedPeerNames {
    /// Checks that the peer certificate has one of these names. Its chain must have been verified before.
    pub fn check(&self, shown: Option<&[CertificateDer<'_>]>) -> Result<(), PeerNameError> {
        if *self == ExpectedPeerNames::default() {
            return Ok(());
        }
        let certificate = shown.and_then(|chain| chain.first()).ok_or(PeerNameError::NoCertificate)?;
        let name = common_name(certificate);
        let uris = list_uri_names(certificate);
        let has_name = self.common_name.is_some() && name == self.common_name;
        let has_uri = self.uri.as_ref().is_some_and(|uri| uris.contains(uri));
        if has_name || has_uri {
            return Ok(());
        }
        let expected = [&self.common_name, &self.uri].into_iter().flatten().cloned().collect();
        Err(PeerNameError::OtherName { found: name.into_iter().chain(uris).collect(), expected })
    }
}

/// Returns the common name of the certificate's subject.
pub fn common_name(certificate: &[u8]) -> Option<String> {
    subject(certificate, COMMON_NAME_OID).into_iter().next()
}

/// Returns the organisations of the certificate's subject. Kubernetes treats them as the groups of a user.
pub fn organisations(certificate: &[u8]) -> Vec<String> {
    subject(certificate, ORGANISATION_OID)
}

/// Returns the values of one attribute of the subject.
fn subject(certificate: &[u8], attribute: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    // If parsing fails midway, the names found so far are returned.
    let _ = attributes(certificate, |kind, text| {
        if kind == attribute {
            found.extend(String::from_utf8(text.to_vec()).ok());
        }
    });
    found
}

fn attributes(certificate: &[u8], mut attribute: impl FnMut(&[u8], &[u8])) -> Option<()> {
    let mut body = body(certificate)?;
    let (tag, mut subject) = value(&mut body)?;
    if tag != SEQUENCE_TAG {
        return None;
    }
    while !subject.is_empty() {
        let (_, mut set) = value(&mut subject)?;
        while !set.is_empty() {
            let (_, mut pair) = value(&mut set)?;
            let (_, kind) = value(&mut pair)?;
            let (_, text) = value(&mut pair)?;
            attribute(kind, text);
        }
    }
    Some(())
}

/// Returns the URIs among the subject alternative names of the certificate.
fn list_uri_names(certificate: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    // If parsing fails midway, the names found so far are returned.
    let _ = visit_alternative_names(certificate, |tag, text| {
        if tag == URI_TAG {
            found.extend(String::from_utf8(text.to_vec()).ok());
        }
    });
    found
}

fn visit_alternative_names(certificate: &[u8], mut name: impl FnMut(u8, &[u8])) -> Option<()> {
    let mut body = body(certificate)?;
    // Skip the subject and the public key; the optional fields follow.
    value(&mut body)?;
    value(&mut body)?;
    let mut extensions = loop {
        let (tag, content) = value(&mut body)?;
        if tag == EXTENSIONS_TAG {
            break value(&mut &content[..])?.1;
        }
    };
    while !extensions.is_empty() {
        let (_, mut extension) = value(&mut extensions)?;
        let (_, kind) = value(&mut extension)?;
        if extension.first() == Some(&BOOLEAN_TAG) {
            value(&mut extension)?;
        }
        let (_, content) = value(&mut extension)?;
        if kind == SUBJECT_ALT_NAME_OID {
            let (_, mut names) = value(&mut &content[..])?;
            while !names.is_empty() {
                let (tag, text) = value(&mut names)?;
                name(tag, text);
            }
        }
    }
    Some(())
}

/// Returns the signed part of the certificate (`TBSCertificate`) from the subject on.
fn body(certificate: &[u8]) -> Option<&[u8]> {
    parts(certificate).map(|parts| parts.body)
}

/// Fields of a certificate, as DER.
pub(crate) struct CertificateFields<'a> {
    pub issuer: &'a [u8],
    pub validity: &'a [u8],
    pub subject: &'a [u8],
    /// The rest of the signed part, starting with the subject.
    body: &'a [u8],
}

pub(crate) fn parts(certificate: &[u8]) -> Option<CertificateFields<'_>> {
    let (_, mut certificate) = value(&mut &certificate[..])?;
    let (_, mut rest) = value(&mut certificate)?;
    if rest.first() == Some(&VERSION_TAG) {
        value(&mut rest)?;
    }
    // Skip the serial number and the signature algorithm.
    value(&mut rest)?;
    value(&mut rest)?;
    let (_, issuer) = value(&mut rest)?;
    let (_, validity) = value(&mut rest)?;
    let body = rest;
    let (_, subject) = value(&mut rest)?;
    Some(CertificateFields { issuer, validity, subject, body })
}

/// Splits one DER value off the front of `bytes` and returns its tag and its content.
pub(crate) fn value<'a>(bytes: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let mut length = usize::from(first);
    if first & 0x80 != 0 {
        let (digits, after) = rest.split_at_checked(usize::from(first & 0x7f))?;
        if digits.len() > 4 {
            return None;
        }
        length = digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit));
        rest = after;
    }
    let (content, rest) = rest.split_at_checked(length)?;
    *bytes = rest;
    Some((tag, content))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

    fn certificate(name: &str, uris: &[&str]) -> CertificateDer<'static> {
        let mut parameters = CertificateParams::new(vec!["host".to_owned()]).unwrap();
        parameters.distinguished_name = DistinguishedName::new();
        parameters.distinguished_name.push(DnType::OrganizationName, "cats");
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.subject_alt_names.extend(uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap())));
        parameters.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    #[test]
    fn the_names_are_found() {
        let certificate = certificate("tortie", &["spiffe://a/b", "spiffe://c"]);
        assert_eq!(common_name(&certificate).as_deref(), Some("tortie"));
        assert_eq!(organisations(&certificate), ["cats"]);
        assert_eq!(list_uri_names(&certificate), ["spiffe://a/b", "spiffe://c"]);
    }

    #[test]
    fn one_expected_name_is_enough() {
        let shown = [certificate("typha", &["spiffe://a"])];
        let expected = |name: Option<&str>, uri: Option<&str>| ExpectedPeerNames {
            common_name: name.map(str::to_owned),
            uri: uri.map(str::to_owned),
        };
        for good in [
            expected(None, None),
            expected(Some("typha"), None),
            expected(Some("other"), Some("spiffe://a")),
            expected(Some("typha"), Some("spiffe://b")),
        ] {
            assert_eq!(good.check(Some(&shown)), Ok(()), "{good:?}");
        }
        for bad in [
            expected(Some("Typha"), None),
            expected(None, Some("spiffe://a/")),
            expected(Some("spiffe://a"), Some("typha")),
        ] {
            assert!(bad.check(Some(&shown)).unwrap_err().to_string().contains("[typha, spiffe://a]"));
        }
        assert!(expected(Some("typha"), None).check(None).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken_calmly(bytes: Vec<u8>) {
            let _ = common_name(&bytes);
            let _ = organisations(&bytes);
            let _ = list_uri_names(&bytes);
        }
    }
}
