//! The APIService through which kube-apiserver finds an aggregated API server, and the CAs that it trusts there.

use super::OrchestratorClient;
use crate::StoreResult;
use crate::backend::kubernetes::failure::KubernetesFailure;
use data_encoding::BASE64;
use serde_json::Value as Json;

const API_SERVICES_PATH: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

#[derive(Clone, Debug, PartialEq)]
pub struct ApiRegistration {
    object: Json,
}

impl ApiRegistration {
    /// Returns whether an aggregated API server serves the group; otherwise Kubernetes serves it itself.
    pub fn is_served_by_others(&self) -> bool {
        self.object.pointer("/spec/service").is_some_and(Json::is_object)
    }

    /// Returns the trusted CAs in PEM; empty if verification is disabled or no CA is set.
    pub fn ca_bundle(&self) -> String {
        let bundle = self.object.pointer("/spec/caBundle").and_then(Json::as_str).unwrap_or_default();
        let text = BASE64.decode(bundle.as_bytes()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        text.unwrap_or_default()
    }
}

impl OrchestratorClient {
    pub async fn api_registration(&self, name: &str) -> StoreResult<Option<ApiRegistration>> {
        match self.api.get("APIService", &format!("{API_SERVICES_PATH}/{name}")).await {
            Ok(object) => Ok(Some(ApiRegistration { object })),
            Err(KubernetesFailure::Missing(_)) => Ok(None),
            Err(failure) => Err(failure.about(format!("APIService({name})"))),
        }
    }

    /// Replaces the trusted CAs. Fails with a conflict if the object has changed since it was read.
    pub async fn set_registration_authorities(
        &self,
        registration: &ApiRegistration,
        authorities: &str,
    ) -> StoreResult<()> {
        let mut object = registration.object.clone();
        object["spec"]["caBundle"] = BASE64.encode(authorities.as_bytes()).into();
        object["spec"]["insecureSkipTLSVerify"] = false.into();
        let name = object.pointer("/metadata/name").and_then(Json::as_str).unwrap_or_default().to_owned();
        let answer = self.api.put(&format!("{API_SERVICES_PATH}/{name}"), &object).await;
        answer.map(drop).map_err(|failure| failure.about(format!("APIService({name})")))
    }
}
