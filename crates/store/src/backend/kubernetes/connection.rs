//! Client configuration for kube-apiserver: from a kubeconfig, from individual settings, or from the service account of
//! the pod.

use crate::config::KubernetesTarget;
use crate::{StoreError, StoreLimits, StoreResult};
use kube::config::{KubeConfigOptions, Kubeconfig};

/// Returns a client for each address of kube-apiserver.
pub async fn connect(target: &KubernetesTarget, limits: &StoreLimits) -> StoreResult<Vec<kube::Client>> {
    let mut clients = Vec::new();
    for endpoint in addresses(&target.endpoint) {
        let target = KubernetesTarget { endpoint: endpoint.to_owned(), ..target.clone() };
        clients.push(client(config(&target).await?, limits)?);
    }
    Ok(clients)
}

/// Splits a comma-separated list of addresses. An empty list yields one empty address: the rest of the settings
/// determines it.
fn addresses(endpoints: &str) -> Vec<&str> {
    let given: Vec<&str> =
        endpoints.split(',').map(str::trim).filter(|address| !address.is_empty()).collect();
    if given.is_empty() { vec![""] } else { given }
}

/// Builds a client that reloads tokens and certificates before they expire: a token file once a minute.
fn client(mut config: kube::Config, limits: &StoreLimits) -> StoreResult<kube::Client> {
    config.connect_timeout = Some(limits.dial);
    // Watches may be silent for a long time; all other requests have a separate timeout.
    config.read_timeout = None;
    kube::Client::try_from(config).map_err(|error| {
        StoreError::Config(format!("the Kubernetes API cannot be used as configured: {error}"))
    })
}

pub async fn config(target: &KubernetesTarget) -> StoreResult<kube::Config> {
    let mut config = match kubeconfig(target)? {
        Some(kubeconfig) => {
            let context = Some(target.context.clone()).filter(|context| !context.is_empty());
            let options = KubeConfigOptions { context, ..Default::default() };
            kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|error| {
                StoreError::Config(format!("invalid kubeconfig '{}': {error}", target.kubeconfig))
            })?
        }
        None if !target.endpoint.is_empty() => kube::Config::new(uri(&target.endpoint)?),
        None => kube::Config::incluster().map_err(|error| {
            StoreError::Config(format!(
                "no kubeconfig is given (KUBECONFIG, kubeconfig) and this does not run in a pod: {error}"
            ))
        })?,
    };
    if !target.endpoint.is_empty() {
        config.cluster_url = uri(&target.endpoint)?;
    }
    if !target.ca_file.is_empty() {
        config.root_cert_file = Some(target.ca_file.clone().into());
    }
    if target.insecure {
        config.accept_invalid_certs = true;
    }
    let auth = &mut config.auth_info;
    for (setting, value) in
        [(&mut auth.client_certificate, &target.cert_file), (&mut auth.client_key, &target.key_file)]
    {
        if !value.is_empty() {
            *setting = Some(value.clone());
        }
    }
    if !target.token.is_empty() {
        auth.token = Some(target.token.clone().into());
    }
    Ok(config)
}

fn uri(endpoint: &str) -> StoreResult<http::Uri> {
    endpoint.parse().map_err(|error| {
        StoreError::Config(format!("invalid k8sAPIEndpoint (K8S_API_ENDPOINT) '{endpoint}': {error}"))
    })
}

fn invalid_kubeconfig(name: &str, error: &kube::config::KubeconfigError) -> StoreError {
    StoreError::Config(format!("cannot read kubeconfig '{name}' (KUBECONFIG, kubeconfig): {error}"))
}

/// Returns the kubeconfig in use: the inline one, or the files of a colon-separated list, merged as kubectl does.
fn kubeconfig(target: &KubernetesTarget) -> StoreResult<Option<Kubeconfig>> {
    if !target.inline.is_empty() {
        let inline = Kubeconfig::from_yaml(&target.inline);
        return inline.map(Some).map_err(|error| invalid_kubeconfig("inline", &error));
    }
    let mut merged: Option<Kubeconfig> = None;
    for file in target.kubeconfig.split(':').filter(|file| !file.is_empty()) {
        let next = Kubeconfig::read_from(file).map_err(|error| invalid_kubeconfig(file, &error))?;
        merged = Some(match merged {
            Some(before) => before.merge(next).map_err(|error| invalid_kubeconfig(file, &error))?,
            None => next,
        });
    }
    Ok(merged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_listed_with_commas() {
        assert_eq!(addresses(""), [""]);
        assert_eq!(addresses("https://a:6443"), ["https://a:6443"]);
        assert_eq!(
            addresses("https://a:6443, https://[fd00::1]:6443,"),
            ["https://a:6443", "https://[fd00::1]:6443"]
        );
    }
}
