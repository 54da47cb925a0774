//! An etcd with TLS as the datastore: the components run with the variables of `deploy/` and the files of the Secret.

use crate::manifests::{container_variables, object_of_kind};
use serde_json::{Value, json};
use std::fs::File;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;
use tortie_testkit::{ApiServer, CalicoGroup, Etcd, EtcdOptions, EtcdTls, TestProcess, free_port};

const TORTIE: &str = env!("CARGO_BIN_EXE_tortie");
const NODE_MANIFEST: &str = include_str!("../../../../deploy/20-node.yaml");
const CONTROLLERS_MANIFEST: &str = include_str!("../../../../deploy/30-controllers.yaml");
const HUB_MANIFEST: &str = include_str!("../../../../deploy/40-hub.yaml");
/// The Secret, its keys by setting, and its directory in the containers.
const ETCD_SECRET: &str = "calico-etcd-secrets";
const ETCD_FILES: [(&str, &str); 3] =
    [("etcd_ca", "etcd-ca"), ("etcd_cert", "etcd-cert"), ("etcd_key", "etcd-key")];
const ETCD_SECRET_DIR: &str = "/calico-secrets";

/// Writes a CA and a certificate for server and client, with the names of the Secret's keys.
fn write_certificates(dir: &Path) {
    let mut authority = rcgen::CertificateParams::default();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority =
        rcgen::CertifiedIssuer::self_signed(authority, rcgen::KeyPair::generate().unwrap()).unwrap();
    let params = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &authority).unwrap();
    for (name, text) in
        [("etcd-ca", authority.pem()), ("etcd-cert", certificate.pem()), ("etcd-key", key.serialize_pem())]
    {
        std::fs::write(dir.join(name), text).unwrap();
    }
}

fn start_etcd(dir: &Path) -> Etcd {
    let tls = EtcdTls {
        ca_file: dir.join("etcd-ca"),
        cert_file: dir.join("etcd-cert"),
        key_file: dir.join("etcd-key"),
        client_cert_auth: true,
    };
    Etcd::start_with(EtcdOptions { tls: Some(tls), ..EtcdOptions::default() }).unwrap()
}

/// Asserts that the container has the files of the Secret.
fn assert_mounted(workload: &Value) {
    let pod = &workload["spec"]["template"]["spec"];
    let named = |list: &Value, name: &Value| -> Value {
        list.as_array().unwrap().iter().find(|entry| entry["name"] == *name).cloned().unwrap_or_default()
    };
    let volumes = pod["volumes"].as_array().unwrap();
    let volume = volumes.iter().find(|volume| volume["secret"]["secretName"] == ETCD_SECRET).unwrap();
    let mount = named(&pod["containers"][0]["volumeMounts"], &volume["name"]);
    assert_eq!(mount["mountPath"], ETCD_SECRET_DIR);
}

/// Returns the variables of a workload, with the paths of the files in the test instead of those in the container.
fn variables(workload: &Value, settings: &Value, dir: &TempDir) -> Vec<(String, String)> {
    assert_mounted(workload);
    let here = dir.path().display().to_string();
    let variables = container_variables(workload, settings).into_iter();
    variables.map(|(name, value)| (name, value.replace(ETCD_SECRET_DIR, &here))).collect()
}

#[test]
fn components_of_deploy_use_etcd_with_tls() {
    let dir = tempfile::tempdir().unwrap();
    write_certificates(dir.path());
    let etcd = start_etcd(dir.path());
    let server = ApiServer::start();
    server.install(CalicoGroup::V3);
    let mut settings = object_of_kind(NODE_MANIFEST, "ConfigMap")["data"].clone();
    settings["datastore_type"] = "etcdv3".into();
    settings["etcd_endpoints"] = etcd.endpoint().into();
    for (setting, file) in ETCD_FILES {
        assert_eq!(settings[setting], "", "{setting} is off by default");
        settings[setting] = format!("{ETCD_SECRET_DIR}/{file}").into();
    }

    let workload = object_of_kind(CONTROLLERS_MANIFEST, "Deployment");
    let mut command = Command::new(TORTIE);
    command
        .args(["controllers", "--identity", "a", "--status-file"])
        .arg(dir.path().join("status"))
        .envs(variables(&workload, &settings, &dir))
        .env("KUBECONFIG", server.kubeconfig())
        .stderr(File::create(dir.path().join("controllers.log")).unwrap());
    let (_controllers, line) = TestProcess::until_first_line(&mut command);
    let log = std::fs::read_to_string(dir.path().join("controllers.log")).unwrap();
    assert_eq!(line, "ready: controllers a\n", "{log}");

    for name in ["tortie-hub", "tortie-hub-client"] {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}});
        server.create("/api/v1/namespaces/kube-system/secrets", &secret);
    }
    let workload = object_of_kind(HUB_MANIFEST, "Deployment");
    let port = free_port().unwrap().to_string();
    let mut command = Command::new(TORTIE);
    command
        .args(["hub", "--config-file", "/nonexistent"])
        .envs(variables(&workload, &settings, &dir))
        .envs([
            ("TYPHA_SERVERHOST", "127.0.0.1"),
            ("TYPHA_SERVERPORT", &port),
            ("TYPHA_HEALTHENABLED", "false"),
        ])
        .env("KUBECONFIG", server.kubeconfig());
    let (_hub, line) = TestProcess::until_first_line(&mut command);
    assert_eq!(line, format!("ready: hub on 127.0.0.1:{port}\n"));

    // The daemon reads the same variables as the command line.
    let workload = object_of_kind(NODE_MANIFEST, "DaemonSet");
    let run = |variables: Vec<(String, String)>| {
        let mut command = Command::new(TORTIE);
        command.args(["ctl", "get", "clusterinformation", "default"]).envs(variables);
        tortie_testkit::output(&mut command, "")
    };
    let ran = run(variables(&workload, &settings, &dir));
    assert!(ran.status.success(), "{ran:?}");
    settings["etcd_cert"] = "".into();
    settings["etcd_key"] = "".into();
    let refused = run(variables(&workload, &settings, &dir));
    assert!(!refused.status.success(), "etcd accepted a client without a certificate: {refused:?}");
}
