use super::*;
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::ServerCertVerifier;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::{ServerName, UnixTime};

const TEST_LIFETIMES: CertificateLifetimes =
    CertificateLifetimes { authority: Duration::from_secs(9_000), certificate: Duration::from_secs(900) };
const START_TIME: i64 = 1_770_000_000;

fn names() -> Vec<String> {
    vec!["webhooks.here.svc".to_owned()]
}

/// Returns whether a client that trusts the CAs `trusted` accepts the server certificate at `now`.
fn is_taken(trusted: &str, kept: &SelfIssuedCertificates, now: i64) -> bool {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(split_certificates(trusted));
    let provider = std::sync::Arc::new(aws_lc_rs::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider).build().unwrap();
    let name = ServerName::try_from("webhooks.here.svc").unwrap();
    let now = UnixTime::since_unix_epoch(Duration::from_secs(now.try_into().unwrap()));
    verifier.verify_server_cert(&split_certificates(&kept.certificate)[0], &[], &name, &[], now).is_ok()
}

fn step(kept: &SelfIssuedCertificates, trusted: Option<&str>, now: i64) -> Option<SelfIssuedCertificates> {
    SelfIssuedCertificates::renewed(kept, trusted, &names(), TEST_LIFETIMES, now).unwrap()
}

#[test]
fn whoever_has_none_makes_all_and_keeps_them() {
    let made = step(&SelfIssuedCertificates::default(), None, START_TIME).unwrap();
    assert!(is_taken(&made.authorities, &made, START_TIME));
    assert_eq!(step(&made, Some(&made.authorities), START_TIME + 10), None);
    // Unusable certificates and keys are replaced.
    for broken in [
        SelfIssuedCertificates { authority_key: "no key".into(), ..made.clone() },
        SelfIssuedCertificates { certificate: String::new(), ..made.clone() },
        SelfIssuedCertificates { authorities: "x".into(), ..made.clone() },
    ] {
        let anew = step(&broken, Some(&broken.authorities), START_TIME).unwrap();
        assert!(is_taken(&anew.authorities, &anew, START_TIME));
    }
    assert!(!format!("{made:?}").contains("PRIVATE"), "{made:?}");
}

#[test]
fn a_new_authority_signs_only_once_trusted() {
    let first = step(&SelfIssuedCertificates::default(), None, START_TIME).unwrap();
    let later = START_TIME + 6_000;
    let second = step(&first, Some(&first.authorities), later).unwrap();
    assert_eq!(split_certificates(&second.authorities).len(), 2);
    assert_eq!(second.certificate, first.certificate);
    assert_eq!(step(&second, Some(&first.authorities), later), None, "nobody believes the new one yet");
    let third = step(&second, Some(&second.authorities), later).unwrap();
    assert!(third.certificate != first.certificate && is_taken(&second.authorities, &third, later));
}

/// A client that uses the trust bundle of the previous step accepts the server certificate at all times, over many
/// renewals.
#[test]
fn at_no_moment_is_the_certificate_refused() {
    let mut kept = step(&SelfIssuedCertificates::default(), None, START_TIME).unwrap();
    let mut trusted = kept.authorities.clone();
    let (mut certificates_seen, mut authorities_seen) = (1, 1);
    for tick in 1..2_000 {
        let now = START_TIME + tick * 60;
        if let Some(next) = step(&kept, Some(&trusted), now) {
            certificates_seen += usize::from(next.certificate != kept.certificate);
            authorities_seen += usize::from(next.authority_key != kept.authority_key);
            kept = next;
        }
        assert!(split_certificates(&kept.authorities).len() <= MAX_TRUSTED_AUTHORITIES);
        // Clients receive the new trust bundle one step later.
        assert!(is_taken(&trusted, &kept, now), "tick {tick}");
        trusted = kept.authorities.clone();
        assert!(is_taken(&trusted, &kept, now), "tick {tick}");
    }
    assert!(certificates_seen > 150 && authorities_seen > 15, "{certificates_seen} {authorities_seen}");
}

#[test]
fn clients_are_certified_by_the_newest_authority() {
    let own = step(&SelfIssuedCertificates::default(), None, START_TIME).unwrap();
    let issue = |own: &SelfIssuedCertificates, kept: &ClientCertificate, now| {
        own.renewed_client(kept, "tortie-node", TEST_LIFETIMES, now).unwrap()
    };
    let first = issue(&own, &ClientCertificate::default(), START_TIME).unwrap();
    assert_eq!(issue(&own, &first, START_TIME + 10), None);
    assert!(issue(&own, &first, START_TIME + 700).is_some(), "two thirds of its life are over");
    let renamed = own.renewed_client(&first, "another", TEST_LIFETIMES, START_TIME).unwrap();
    assert!(renamed.is_some());
    let other = step(&SelfIssuedCertificates::default(), None, START_TIME + 1).unwrap();
    let foreign = issue(&other, &first, START_TIME + 2).unwrap();
    assert_eq!(common_name(&split_certificates(&foreign.certificate)[0]).as_deref(), Some("tortie-node"));
    let (as_server, as_client) =
        (pem_of(&own, &own.certificate, &own.key), pem_of(&own, &first.certificate, &first.key));
    assert!(as_server.server().is_ok() && as_client.client().is_ok());
    assert!(!format!("{first:?} {as_client:?}").contains("PRIVATE"));
}

fn pem_of(own: &SelfIssuedCertificates, certificate: &str, key: &str) -> crate::TlsPem {
    crate::TlsPem {
        certificate: certificate.into(),
        key: key.into(),
        ca: Some(own.authorities.clone().into()),
    }
}
