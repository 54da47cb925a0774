//! Objects that webhook and API servers keep in Kubernetes: their certificates in a Secret, and their CAs in the
//! configurations of webhooks.

use super::{ANY_RESOURCE_VERSION, MERGE_PATCH_MEDIA_TYPE, OrchestratorClient, next_event, text_at};
use crate::StoreResult;
use crate::backend::kubernetes::api::ObjectDetail;
use crate::backend::kubernetes::failure::KubernetesFailure;
use data_encoding::BASE64;
use kube::core::WatchEvent;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::convert::Infallible;

const WEBHOOK_CONFIGURATIONS_PATH: &str =
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";

#[derive(Clone, Default, PartialEq, Eq)]
pub struct KubernetesSecret {
    pub data: BTreeMap<String, String>,
    /// Resource version at which the secret was read; empty if it does not exist yet.
    pub version: String,
}

/// A ValidatingWebhookConfiguration, of which only the CA bundles are used.
#[derive(Clone, Debug, PartialEq)]
pub struct WebhookConfiguration {
    object: Json,
}

impl WebhookConfiguration {
    /// Returns the CA bundle of the webhooks in PEM; empty if they have different bundles.
    pub fn ca_bundle(&self) -> String {
        let mut bundles = self.clients().map(|client| client.get("caBundle").and_then(Json::as_str));
        let first = bundles.next().flatten().unwrap_or_default();
        let text = BASE64.decode(first.as_bytes()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        text.filter(|_| bundles.all(|other| other == Some(first))).unwrap_or_default()
    }

    fn clients(&self) -> impl Iterator<Item = &Json> {
        let webhooks = self.object.get("webhooks").and_then(Json::as_array).into_iter().flatten();
        webhooks.filter_map(|webhook| webhook.get("clientConfig"))
    }
}

impl KubernetesSecret {
    fn encode_data(&self) -> BTreeMap<&String, String> {
        self.data.iter().map(|(key, value)| (key, BASE64.encode(value.as_bytes()))).collect()
    }
}

impl OrchestratorClient {
    /// Returns a secret; one without data if it does not exist.
    pub async fn secret(&self, namespace: &str, name: &str) -> StoreResult<KubernetesSecret> {
        let object =
            match self.api.get("Secret", &format!("/api/v1/namespaces/{namespace}/secrets/{name}")).await {
                Ok(object) => object,
                Err(KubernetesFailure::Missing(_)) => return Ok(KubernetesSecret::default()),
                Err(failure) => return Err(failure.about(format!("Secret({namespace}/{name})"))),
            };
        let mut secret = KubernetesSecret {
            version: text_at(&object, "/metadata/resourceVersion").to_owned(),
            ..KubernetesSecret::default()
        };
        for (key, value) in object.get("data").and_then(Json::as_object).into_iter().flatten() {
            let bytes = BASE64.decode(value.as_str().unwrap_or_default().as_bytes());
            // Tortie writes only text; ignore values that are not UTF-8.
            if let Some(text) = bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok()) {
                secret.data.insert(key.clone(), text);
            }
        }
        Ok(secret)
    }

    /// Passes the secret to `changed`, and again after each change, until the watch ends. Returns the reason of the end;
    /// the caller may then call it again. Needs the rights to get and to watch this secret, not those to list others.
    pub async fn follow_secret(
        &self,
        namespace: &str,
        name: &str,
        mut changed: impl FnMut(KubernetesSecret),
    ) -> StoreResult<Infallible> {
        let id = format!("Secret({namespace}/{name})");
        let path = format!("/api/v1/namespaces/{namespace}/secrets");
        let opened = self.api.watch_named(&path, name, ObjectDetail::Metadata, ANY_RESOURCE_VERSION).await;
        let mut events = opened.map_err(|failure| failure.about(id.clone()))?;
        changed(self.secret(namespace, name).await?);
        loop {
            match next_event(&mut events, &id).await? {
                WatchEvent::Bookmark(_) => {}
                _ => changed(self.secret(namespace, name).await?),
            }
        }
    }

    /// Creates the secret, or replaces the version that was read. Fails with a conflict if another client was faster.
    pub async fn write_secret(
        &self,
        namespace: &str,
        name: &str,
        secret: &KubernetesSecret,
    ) -> StoreResult<()> {
        let mut body = json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {"name": name, "namespace": namespace}, "data": secret.encode_data()});
        let path = format!("/api/v1/namespaces/{namespace}/secrets");
        let answer = if secret.version.is_empty() {
            self.api.post(&path, &body).await
        } else {
            body["metadata"]["resourceVersion"] = secret.version.as_str().into();
            self.api.put(&format!("{path}/{name}"), &body).await
        };
        answer.map(drop).map_err(|failure| failure.about(format!("Secret({namespace}/{name})")))
    }

    /// Sets the data of an existing secret at the version that was read, and keeps its metadata. Does not need the
    /// right to create secrets, which in kube-system includes the right to create bootstrap tokens.
    pub async fn fill_secret(
        &self,
        namespace: &str,
        name: &str,
        secret: &KubernetesSecret,
    ) -> StoreResult<()> {
        let patch = json!({"metadata": {"resourceVersion": secret.version}, "data": secret.encode_data()});
        let path = format!("/api/v1/namespaces/{namespace}/secrets/{name}");
        let answer = self.api.patch(&path, MERGE_PATCH_MEDIA_TYPE, &patch).await;
        answer.map(drop).map_err(|failure| failure.about(format!("Secret({namespace}/{name})")))
    }

    pub async fn webhook_configuration(&self, name: &str) -> StoreResult<Option<WebhookConfiguration>> {
        match self
            .api
            .get("ValidatingWebhookConfiguration", &format!("{WEBHOOK_CONFIGURATIONS_PATH}/{name}"))
            .await
        {
            Ok(object) => Ok(Some(WebhookConfiguration { object })),
            Err(KubernetesFailure::Missing(_)) => Ok(None),
            Err(failure) => Err(failure.about(configuration_id(name))),
        }
    }

    /// Sets the CA bundle of all webhooks of a configuration. Fails with a conflict if it has changed since it was
    /// read.
    pub async fn set_ca_bundle(
        &self,
        configuration: &WebhookConfiguration,
        authorities: &str,
    ) -> StoreResult<()> {
        let mut object = configuration.object.clone();
        let bundle = BASE64.encode(authorities.as_bytes());
        for webhook in object.get_mut("webhooks").and_then(Json::as_array_mut).into_iter().flatten() {
            webhook["clientConfig"]["caBundle"] = bundle.as_str().into();
        }
        let name = object.pointer("/metadata/name").and_then(Json::as_str).unwrap_or_default().to_owned();
        let answer = self.api.put(&format!("{WEBHOOK_CONFIGURATIONS_PATH}/{name}"), &object).await;
        answer.map(drop).map_err(|failure| failure.about(configuration_id(&name)))
    }
}

fn configuration_id(name: &str) -> String {
    format!("ValidatingWebhookConfiguration({name})")
}

/// Omits the data.
impl std::fmt::Debug for KubernetesSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secret").field("version", &self.version).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhooks_have_one_ca_bundle() {
        let configuration = |bundles: &[Option<&str>]| WebhookConfiguration {
            object: json!({"webhooks": bundles.iter().map(|bundle| json!({"clientConfig": match bundle {
                Some(bundle) => json!({"caBundle": BASE64.encode(bundle.as_bytes())}),
                None => json!({}),
            }})).collect::<Vec<_>>()}),
        };
        assert_eq!(configuration(&[Some("a"), Some("a")]).ca_bundle(), "a");
        assert_eq!(configuration(&[Some("a"), Some("b")]).ca_bundle(), "");
        assert_eq!(configuration(&[Some("a"), None]).ca_bundle(), "");
        assert_eq!(configuration(&[]).ca_bundle(), "");
    }
}
