//! Tests of precedence, strict parsing and consistency checks.

use super::*;
use std::collections::HashMap;

fn load(file: &Path, variables: &[(&str, &str)]) -> StoreResult<StoreConfig> {
    let variables: HashMap<_, _> = variables.iter().copied().collect();
    StoreConfig::load_with(file, &|name| variables.get(name).map(|value| (*value).to_owned()))
}

/// A socket that exists on no test machine, so that a running embedded store does not affect the tests.
const NO_SOCKET: (&str, &str) = (StoreConfig::SOCKET_VARIABLE, "/nonexistent/socket");

fn written(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

fn message<T: std::fmt::Debug>(result: StoreResult<T>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn prefixed_variables_win() {
    let default = Path::new(StoreConfig::DEFAULT_FILE);
    let config = load(
        default,
        &[
            ("ETCD_ENDPOINTS", "http://a:1"),
            ("CALICO_ETCD_ENDPOINTS", "http://b:1"),
            ("ETCD_USERNAME", "u"),
            NO_SOCKET,
        ],
    )
    .unwrap();
    assert_eq!(config, StoreConfig { etcd_username: "u".into(), ..StoreConfig::at("http://b:1") });
}

#[test]
fn a_file_replaces_the_environment() {
    let file = written(
        "apiVersion: projectcalico.org/v3\nkind: CalicoAPIConfig\nmetadata: {}\nspec:\n  datastoreType: etcdv3\n  \
         etcdEndpoints: https://10.9.0.11:2379,https://10.9.0.12:2379\n  k8sClientQPS: 2.5\n",
    );
    let config = load(file.path(), &[("ETCD_USERNAME", "u"), ("ETCD_ENDPOINTS", "http://a:1")]).unwrap();
    assert_eq!(config.etcd_endpoints, "https://10.9.0.11:2379,https://10.9.0.12:2379");
    assert_eq!((config.etcd_username.as_str(), config.k8s_client_qps), ("", 2.5));
    let json = written(
        r#"{"apiVersion":"projectcalico.org/v3","kind":"CalicoAPIConfig","spec":{"etcdCACert":"x"}}"#,
    );
    assert_eq!(load(json.path(), &[NO_SOCKET]).unwrap().etcd_ca_cert, "x");
}

#[test]
fn a_missing_explicit_file_is_an_error() {
    let path = Path::new("/nonexistent/calicoctl.cfg");
    assert_eq!(message(load(path, &[])), "Error reading config file: /nonexistent/calicoctl.cfg");
}

#[test]
fn a_file_is_read_strictly() {
    let head = "apiVersion: projectcalico.org/v3\nkind: CalicoAPIConfig\n";
    for (text, part) in [
        (format!("{head}spec:\n  etcdEndpoint: http://a:1\n"), "etcdEndpoint"),
        (format!("{head}extra: 1\n"), "extra"),
        (format!("{head}spec:\n  etcdEndpoints: a\n  etcdEndpoints: b\n"), "duplicate"),
        (
            "apiVersion: v1\nkind: CalicoAPIConfig\n".into(),
            "expected APIVersion 'projectcalico.org/v3', got 'v1'",
        ),
        (
            "apiVersion: projectcalico.org/v3\nkind: IPPool\n".into(),
            "expected kind 'CalicoAPIConfig', got 'IPPool'",
        ),
        (String::new(), "expected APIVersion"),
        ("{".into(), "invalid config file"),
        (format!("{head}spec: [1]\n"), "invalid config file"),
    ] {
        let text_of_error = message(load(written(&text).path(), &[]));
        assert!(text_of_error.contains(part), "{text}: {text_of_error}");
    }
}

#[test]
fn the_default_socket_serves_when_nothing_is_configured() {
    let socket = tempfile::NamedTempFile::new().unwrap();
    let path = socket.path().to_str().unwrap();
    let default = Path::new(StoreConfig::DEFAULT_FILE);
    let config = load(default, &[(StoreConfig::SOCKET_VARIABLE, path)]).unwrap();
    assert_eq!(config.etcd_endpoints, format!("unix://{path}"));
    let config =
        load(default, &[(StoreConfig::SOCKET_VARIABLE, path), ("ETCD_ENDPOINTS", "http://a:1")]).unwrap();
    assert_eq!(config.etcd_endpoints, "http://a:1");
    assert!(message(load(default, &[NO_SOCKET]).unwrap().target()).starts_with("no datastore is configured"));
}

#[test]
fn bad_values_name_the_field_and_the_value() {
    let file = Path::new(StoreConfig::DEFAULT_FILE);
    assert_eq!(
        message(load(file, &[("K8S_CLIENT_BURST", "many")])),
        "environment variable K8S_CLIENT_BURST = 'many' is not a number"
    );
    assert_eq!(
        message(load(file, &[("CALICO_USE_POD_CIDR", "si")])),
        "environment variable USE_POD_CIDR = 'si' is not true or false"
    );
    let error = message(StoreConfig::at("http://a:1,gopher://b:2").target());
    assert!(error.contains("ETCD_ENDPOINTS") && error.contains("'gopher://b:2'"), "{error}");
}

#[test]
fn settings_that_exclude_each_other_are_refused() {
    let base = StoreConfig::at("https://a:1");
    let cases = [
        (StoreConfig { etcd_discovery_srv: "example".into(), ..base.clone() }, "exclude each other"),
        (
            StoreConfig { etcd_key_file: "/k".into(), ..base.clone() },
            "etcdKeyFile and etcdCertFile must be given together",
        ),
        (
            StoreConfig { etcd_cert: "pem".into(), ..base.clone() },
            "etcdKey and etcdCert must be given together",
        ),
        (
            StoreConfig { etcd_ca_cert: "pem".into(), etcd_ca_cert_file: "/c".into(), ..base.clone() },
            "cannot be mixed",
        ),
        (
            StoreConfig { etcd_ca_cert_file: "/nonexistent/ca".into(), ..base.clone() },
            "etcdCACertFile '/nonexistent/ca'",
        ),
        (StoreConfig { datastore_type: "consul".into(), ..base.clone() }, "unknown datastore type 'consul'"),
        (
            StoreConfig { datastore_type: "etcdv3".into(), ..StoreConfig::default() },
            "no etcd endpoints specified",
        ),
    ];
    for (config, part) in cases {
        let text = message(config.target());
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn credentials_count_only_in_pairs() {
    let base = StoreConfig::at("http://a:1");
    let credentials = |config: &StoreConfig| match config.target().unwrap() {
        StoreTarget::Etcd(target) => target.credentials,
        other => panic!("{other:?}"),
    };
    assert_eq!(credentials(&StoreConfig { etcd_username: "u".into(), ..base.clone() }), None);
    let both = StoreConfig { etcd_username: "u".into(), etcd_password: "secret".into(), ..base };
    assert!(!format!("{both:?}{:?}", both.target().unwrap()).contains("secret"));
    assert!(credentials(&both).is_some());
}

#[test]
fn kubernetes_is_selected_by_name_or_by_default() {
    let base = StoreConfig { k8s_api_token: "secret".into(), ..StoreConfig::default() };
    for config in [
        StoreConfig {
            datastore_type: "kubernetes".into(),
            etcd_endpoints: "http://a:1".into(),
            ..base.clone()
        },
        StoreConfig { kubeconfig: "/root/.kube/config".into(), ..base.clone() },
        StoreConfig { k8s_api_endpoint: "https://a:6443".into(), ..base.clone() },
    ] {
        let target = config.target().unwrap();
        assert!(
            matches!(&target, StoreTarget::Kubernetes(kubernetes) if kubernetes.token == "secret"),
            "{target:?}"
        );
        assert!(!format!("{target:?}").contains("secret"));
    }
    let both = StoreConfig { etcd_endpoints: "http://a:1".into(), kubeconfig: "/k".into(), ..base };
    assert!(matches!(both.target().unwrap(), StoreTarget::Etcd(_)));
}
