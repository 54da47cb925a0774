use super::*;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};

struct TrustTestAuthority(CertifiedIssuer<'static, KeyPair>);

impl TrustTestAuthority {
    fn new() -> TrustTestAuthority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        TrustTestAuthority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    fn sign(&self, name: &str, group: Option<&str>) -> Vec<CertificateDer<'static>> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        vec![params.signed_by(&key, &self.0).unwrap().der().clone()]
    }
}

fn data(proxies: &TrustTestAuthority, clients: &TrustTestAuthority) -> BTreeMap<String, String> {
    let pairs = [
        ("requestheader-client-ca-file", proxies.pem()),
        ("requestheader-allowed-names", r#"["front-proxy"]"#.to_owned()),
        ("requestheader-username-headers", r#"["X-Remote-User"]"#.to_owned()),
        ("requestheader-group-headers", r#"["X-Remote-Group"]"#.to_owned()),
        ("requestheader-extra-headers-prefix", r#"["X-Remote-Extra-"]"#.to_owned()),
        ("client-ca-file", clients.pem()),
    ];
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

#[test]
fn only_the_proxy_speaks_for_others() {
    let (proxies, clients, strangers) =
        (TrustTestAuthority::new(), TrustTestAuthority::new(), TrustTestAuthority::new());
    let trust = ProxyTrust::read(&data(&proxies, &clients)).unwrap();
    let judge = |chain: Vec<CertificateDer<'static>>| trust.identify_holder(&chain, UnixTime::now());
    assert_eq!(judge(proxies.sign("front-proxy", None)), Some(CertificateHolder::Proxy));
    assert_eq!(judge(proxies.sign("somebody", None)), None);
    assert_eq!(judge(strangers.sign("front-proxy", None)), None);
    let jane =
        KubernetesUser { name: "jane".into(), groups: vec!["ops".into()], ..KubernetesUser::default() };
    assert_eq!(judge(clients.sign("jane", Some("ops"))), Some(CertificateHolder::Client(jane)));
    // The common name alone does not identify the proxy.
    assert!(matches!(judge(clients.sign("front-proxy", None)), Some(CertificateHolder::Client(_))));
    assert_eq!(judge(Vec::new()), None);
}

#[test]
fn headers_describe_a_user() {
    let (proxies, clients) = (TrustTestAuthority::new(), TrustTestAuthority::new());
    let trust = ProxyTrust::read(&data(&proxies, &clients)).unwrap();
    let mut headers = HeaderMap::new();
    assert_eq!(trust.read_user(&headers), None);
    headers.append("x-remote-user", "jane".parse().unwrap());
    headers.append("x-remote-group", "ops".parse().unwrap());
    headers.append("x-remote-group", "system:authenticated".parse().unwrap());
    headers.append("x-remote-extra-example.org%2fscope", "a".parse().unwrap());
    let user = trust.read_user(&headers).unwrap();
    assert_eq!((user.name.as_str(), user.groups.len()), ("jane", 2));
    assert_eq!(user.extra["example.org/scope"], ["a"]);
}

#[test]
fn what_cannot_be_read_is_not_believed() {
    let (proxies, clients) = (TrustTestAuthority::new(), TrustTestAuthority::new());
    for (key, value) in [
        ("requestheader-client-ca-file", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
        ("requestheader-allowed-names", "front-proxy"),
    ] {
        let mut data = data(&proxies, &clients);
        data.insert(key.to_owned(), value.to_owned());
        assert!(ProxyTrust::read(&data).unwrap_err().to_string().starts_with(key));
    }
    assert!(
        ProxyTrust::read(&BTreeMap::new())
            .unwrap()
            .identify_holder(&proxies.sign("front-proxy", None), UnixTime::now())
            .is_none()
    );
}
