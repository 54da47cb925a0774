//! The credentials of the CNI plugins: a kubeconfig with a token of a separate service account, renewed long before it
//! expires.

use super::InstallError;
use crate::startup::EnvironmentVariables;
use jiff::Timestamp;
use serde_json::json;
use std::time::{Duration, Instant};
use tortie_store::orchestrator::{ApiServerAddress, OrchestratorClient, ServiceAccountToken};

const DEFAULT_CNI_ACCOUNT: &str = "tortie-cni-plugin";
const DEFAULT_CNI_NAMESPACE: &str = "kube-system";
/// In a pod, this file contains the namespace of the pod.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
const TOKEN_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);
const MIN_RENEWAL_DELAY: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct CniCredentials {
    namespace: String,
    account: String,
    /// Renewal interval, if configured.
    interval: Option<Duration>,
    due: Option<Instant>,
}

impl CniCredentials {
    pub fn new(variables: &EnvironmentVariables) -> Result<CniCredentials, InstallError> {
        let own = std::fs::read_to_string(NAMESPACE_FILE).unwrap_or_default();
        let default = if own.trim().is_empty() { DEFAULT_CNI_NAMESPACE } else { own.trim() };
        let mut interval = None;
        if let Some(text) = variables.given("CNI_TOKEN_REFRESH_INTERVAL") {
            let parsed = text.parse::<tortie_model::scalar::GoDuration>().ok();
            interval = parsed.and_then(|parsed| parsed.to_std()).filter(|parsed| !parsed.is_zero());
            if interval.is_none() {
                return Err(InstallError::RefreshInterval(text.to_owned()));
            }
        }
        Ok(CniCredentials {
            namespace: variables.get_or("POD_NAMESPACE", default),
            account: variables.get_or("CALICO_CNI_SERVICE_ACCOUNT", DEFAULT_CNI_ACCOUNT),
            interval,
            due: None,
        })
    }

    pub fn are_due(&self) -> bool {
        self.due.is_none_or(|due| due <= Instant::now())
    }

    /// Returns the time until the credentials are due.
    pub fn remaining(&self) -> Duration {
        self.due
            .map(|due| due.saturating_duration_since(Instant::now()))
            .unwrap_or_default()
            .max(MIN_RENEWAL_DELAY)
    }

    /// Requests a new token and returns a kubeconfig with it.
    pub async fn renew(&mut self, orchestrator: &OrchestratorClient) -> Result<String, InstallError> {
        let token = orchestrator.token(&self.namespace, &self.account, TOKEN_LIFETIME.as_secs()).await;
        let token = token.map_err(|source| InstallError::Token {
            namespace: self.namespace.clone(),
            account: self.account.clone(),
            source: Box::new(source),
        })?;
        let wait =
            self.interval.unwrap_or_else(|| compute_renewal_delay(&token, Timestamp::now(), rand::random()));
        self.due = Some(Instant::now() + wait);
        let server = orchestrator.server();
        if server.is_unchecked {
            tracing::warn!(
                server = server.url,
                "the CNI plugins do not check the certificate of the API server, because the node's own settings do not \
                 (K8S_INSECURE_SKIP_TLS_VERIFY, or insecure-skip-tls-verify in its kubeconfig)"
            );
        }
        Ok(render_kubeconfig(server, &token.text))
    }
}

/// Returns the time until the renewal: a quarter of the token's remaining lifetime plus up to the same again at
/// random, so that the nodes do not renew at the same time.
fn compute_renewal_delay(token: &ServiceAccountToken, now: Timestamp, jitter: f64) -> Duration {
    let expires = token.expires.parse::<Timestamp>().unwrap_or(now);
    let left = u64::try_from(expires.duration_since(now).as_secs()).unwrap_or(0);
    let quarter = Duration::from_secs(left) / 4;
    (quarter + quarter.mul_f64(jitter.clamp(0.0, 1.0))).max(MIN_RENEWAL_DELAY)
}

fn render_kubeconfig(server: &ApiServerAddress, token: &str) -> String {
    let mut cluster = json!({"server": server.url});
    if let Some(pem) = &server.authority {
        cluster["certificate-authority-data"] = data_encoding::BASE64.encode(pem.as_bytes()).into();
    }
    if server.is_unchecked {
        cluster["insecure-skip-tls-verify"] = true.into();
    }
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "local", "cluster": cluster}],
        "users": [{"name": "calico", "user": {"token": token}}],
        "contexts": [{"name": "calico-context", "context": {"cluster": "local", "user": "calico"}}],
        "current-context": "calico-context",
    });
    // JSON is valid YAML.
    format!("{config:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_renewed_long_before_it_ends() {
        let now: Timestamp = "2030-01-01T00:00:00Z".parse().unwrap();
        let token = |expires: &str| ServiceAccountToken { text: "x".into(), expires: expires.into() };
        let hour = Duration::from_secs(3600);
        assert_eq!(compute_renewal_delay(&token("2030-01-02T00:00:00Z"), now, 0.0), 6 * hour);
        assert_eq!(compute_renewal_delay(&token("2030-01-02T00:00:00Z"), now, 1.0), 12 * hour);
        assert_eq!(compute_renewal_delay(&token("2029-01-01T00:00:00Z"), now, 1.0), MIN_RENEWAL_DELAY);
        assert_eq!(compute_renewal_delay(&token("soon"), now, 1.0), MIN_RENEWAL_DELAY);
    }

    #[test]
    fn plugins_check_the_server_unless_told_otherwise() {
        let server =
            ApiServerAddress { url: "https://10.96.0.1:443".into(), authority: None, is_unchecked: false };
        assert!(
            !render_kubeconfig(&server, "t").contains("insecure"),
            "the system's authorities are believed"
        );
        let unchecked = ApiServerAddress { is_unchecked: true, ..server.clone() };
        assert!(render_kubeconfig(&unchecked, "t").contains("insecure-skip-tls-verify"));
        let server = ApiServerAddress { authority: Some("PEM".into()), ..server };
        let text = render_kubeconfig(&server, "t");
        assert!(text.contains(r#""certificate-authority-data": "UEVN""#), "{text}");
        assert!(!text.contains("insecure"), "{text}");
    }
}
