//! Creates the credentials of the lab's Kubernetes: a CA, the certificates of kube-apiserver, and a token for every
//! other user.
//!
//! Users and groups have their standard names, so that the standard RBAC rules and the node authorizer apply.

use super::{SERVICE_RANGES, dir};
use crate::cluster::LabCluster;
use crate::error::{LabError, LabResult};
use crate::place::LabPaths;
use crate::topology;
use ipnet::IpNet;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

pub const API_PORT: u16 = 6443;
/// Common name of the client certificate that kube-apiserver presents to extension API servers.
pub const FRONT_PROXY_NAME: &str = "front-proxy-client";
/// DNS names of the API server.
const API_SERVER_NAMES: [&str; 5] = [
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "localhost",
];

/// A user with a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterUser {
    Admin,
    ControllerManager,
    Scheduler,
    Proxy,
    /// The kubelet of a node.
    Node(String),
}

impl ClusterUser {
    fn name(&self) -> String {
        match self {
            ClusterUser::Admin => "admin".to_owned(),
            ClusterUser::ControllerManager => "system:kube-controller-manager".to_owned(),
            ClusterUser::Scheduler => "system:kube-scheduler".to_owned(),
            ClusterUser::Proxy => "system:kube-proxy".to_owned(),
            ClusterUser::Node(name) => format!("system:node:{name}"),
        }
    }

    fn groups(&self) -> &'static str {
        match self {
            ClusterUser::Admin => "system:masters",
            ClusterUser::Node(_) => "system:nodes",
            _ => "",
        }
    }

    fn file(&self) -> String {
        match self {
            ClusterUser::Admin => "admin.kubeconfig".to_owned(),
            ClusterUser::ControllerManager => "controller-manager.kubeconfig".to_owned(),
            ClusterUser::Scheduler => "scheduler.kubeconfig".to_owned(),
            ClusterUser::Proxy => "proxy.kubeconfig".to_owned(),
            ClusterUser::Node(name) => format!("{name}.kubeconfig"),
        }
    }

    pub fn kubeconfig(&self, place: &LabPaths) -> PathBuf {
        dir(place).join(self.file())
    }
}

/// Returns the directory of the certificates and keys.
pub fn pki_dir(place: &LabPaths) -> PathBuf {
    dir(place).join("pki")
}

/// Returns the path of a certificate or key file.
pub fn file(place: &LabPaths, name: &str) -> PathBuf {
    pki_dir(place).join(name)
}

/// Returns the URL of the API server.
pub fn server() -> String {
    format!("https://{}:{API_PORT}", topology::gateway(1).ipv4)
}

/// Creates all certificates, keys and tokens. Every lab has its own.
pub fn create(place: &LabPaths, cluster: &LabCluster) -> LabResult<()> {
    let pki = pki_dir(place);
    fs::create_dir_all(&pki).map_err(LabError::file(&pki))?;
    let authority = CertificateAuthority::new("tortie lab").map_err(certificate_error)?;
    write_secret(&file(place, "ca.crt"), &authority.certificate)?;
    let addresses = api_addresses()?;
    let names = API_SERVER_NAMES.iter().map(|name| (*name).to_owned()).chain(addresses).collect();
    let serving = authority.issue(names, "kube-apiserver", None, ExtendedKeyUsagePurpose::ServerAuth);
    write_pair(place, "apiserver", serving.map_err(certificate_error)?)?;
    // Client certificate with which kube-apiserver authenticates to kubelets.
    let client = authority.issue(
        Vec::new(),
        "kube-apiserver-kubelet-client",
        Some("system:masters"),
        ExtendedKeyUsagePurpose::ClientAuth,
    );
    write_pair(place, "kubelet-client", client.map_err(certificate_error)?)?;
    // Extension API servers trust user headers from clients with this certificate, so its CA must not issue any other.
    let proxies = CertificateAuthority::new("tortie lab front proxy").map_err(certificate_error)?;
    write_secret(&file(place, "front-proxy-ca.crt"), &proxies.certificate)?;
    let proxy = proxies.issue(Vec::new(), FRONT_PROXY_NAME, None, ExtendedKeyUsagePurpose::ClientAuth);
    write_pair(place, "front-proxy", proxy.map_err(certificate_error)?)?;
    let accounts = KeyPair::generate().map_err(certificate_error)?;
    write_secret(&file(place, "accounts.key"), &accounts.serialize_pem())?;
    write_secret(&file(place, "accounts.pub"), &accounts.public_key_pem())?;
    let nodes = cluster.nodes.iter().map(|node| ClusterUser::Node(node.name.clone()));
    let users =
        [ClusterUser::Admin, ClusterUser::ControllerManager, ClusterUser::Scheduler, ClusterUser::Proxy];
    let mut tokens = String::new();
    for user in users.into_iter().chain(nodes) {
        let token = uuid::Uuid::new_v4().simple().to_string();
        let name = user.name();
        tokens += &format!("{token},{name},{name},\"{}\"\n", user.groups());
        write_secret(&user.kubeconfig(place), &kubeconfig(&authority.certificate, &token).to_string())?;
    }
    write_secret(&file(place, "tokens"), &tokens)
}

/// Returns the addresses of the API server: the gateway of the first rack, the loopback, and the first address of each
/// service range.
fn api_addresses() -> LabResult<Vec<String>> {
    let gateway = topology::gateway(1);
    let mut addresses = vec![gateway.ipv4.to_string(), gateway.ipv6.to_string(), "127.0.0.1".to_owned()];
    for range in SERVICE_RANGES {
        let range: IpNet =
            range.parse().map_err(|_| LabError::refused(format!("{range:?} is no range of services")))?;
        addresses.extend(range.hosts().next().map(|address| address.to_string()));
    }
    Ok(addresses)
}

fn kubeconfig(authority: &str, token: &str) -> Value {
    let authority = data_encoding::BASE64.encode(authority.as_bytes());
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": {"server": server(), "certificate-authority-data": authority}}],
        "users": [{"name": "lab", "user": {"token": token}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
        "current-context": "lab",
    })
}

struct CertificateAuthority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

/// A certificate and its private key, in PEM.
struct IssuedCertificate {
    certificate: String,
    key: String,
}

impl CertificateAuthority {
    fn new(name: &str) -> std::result::Result<CertificateAuthority, rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut parameters = CertificateParams::new(Vec::new())?;
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        parameters.distinguished_name.push(DnType::CommonName, name);
        let certificate = parameters.self_signed(&key)?.pem();
        Ok(CertificateAuthority { issuer: Issuer::new(parameters, key), certificate })
    }

    fn issue(
        &self,
        names: Vec<String>,
        common_name: &str,
        organisation: Option<&str>,
        purpose: ExtendedKeyUsagePurpose,
    ) -> std::result::Result<IssuedCertificate, rcgen::Error> {
        let mut parameters = CertificateParams::new(names)?;
        parameters.distinguished_name.push(DnType::CommonName, common_name);
        if let Some(organisation) = organisation {
            parameters.distinguished_name.push(DnType::OrganizationName, organisation);
        }
        parameters.extended_key_usages = vec![purpose];
        let key = KeyPair::generate()?;
        let certificate = parameters.signed_by(&key, &self.issuer)?.pem();
        Ok(IssuedCertificate { certificate, key: key.serialize_pem() })
    }
}

fn write_pair(place: &LabPaths, name: &str, issued: IssuedCertificate) -> LabResult<()> {
    write_secret(&file(place, &format!("{name}.crt")), &issued.certificate)?;
    write_secret(&file(place, &format!("{name}.key")), &issued.key)
}

/// Writes a file that only its owner can read.
fn write_secret(path: &Path, text: &str) -> LabResult<()> {
    use std::io::Write;
    let opened = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    opened.and_then(|mut file| file.write_all(text.as_bytes())).map_err(LabError::file(path))
}

fn certificate_error(error: rcgen::Error) -> LabError {
    LabError::refused(format!("cannot make certificates: {error}"))
}
