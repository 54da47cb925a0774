//! AdmissionReview of admission.k8s.io/v1: parses the request of kube-apiserver and builds the response. No I/O.

use crate::refusal::StatusError;
use crate::request::RequestVerb;
use crate::write::read_text_at;
use serde::Deserialize;
use serde_json::{Value, json};
use tortie_model::kinds::DEFAULT_TIER;
use tortie_store::orchestrator::KubernetesUser;

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AdmissionReviewBody {
    api_version: String,
    kind: String,
    request: AdmissionRequest,
}

/// Reason why the body of a request is not an AdmissionReview.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionParseError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("{version} {kind} is not {API_VERSION} {KIND}")]
    OtherKind { version: String, kind: String },
}

/// A request to create, update or delete an object.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionRequest {
    pub uid: String,
    pub operation: AdmissionOperation,
    pub user_info: KubernetesUser,
    pub resource: AdmissionResource,
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub namespace: String,
    /// Null for a deletion.
    #[serde(default)]
    pub object: Value,
    /// Null for a creation.
    #[serde(default)]
    pub old_object: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum AdmissionOperation {
    Create,
    Update,
    Delete,
    Connect,
}

#[derive(Clone, Debug, Deserialize)]
pub struct AdmissionResource {
    pub group: String,
    pub resource: String,
}

impl AdmissionOperation {
    /// Returns the verb in RBAC rules. A patch counts as an update: the AdmissionReview does not distinguish them.
    pub fn verb(self) -> Option<RequestVerb> {
        match self {
            AdmissionOperation::Create => Some(RequestVerb::Create),
            AdmissionOperation::Update => Some(RequestVerb::Update),
            AdmissionOperation::Delete => Some(RequestVerb::Delete),
            AdmissionOperation::Connect => None,
        }
    }
}

impl AdmissionRequest {
    pub fn parse(body: &[u8]) -> Result<AdmissionRequest, AdmissionParseError> {
        let review: AdmissionReviewBody = serde_json::from_slice(body)?;
        match (review.api_version.as_str(), review.kind.as_str()) {
            (API_VERSION, KIND) => Ok(review.request),
            _ => Err(AdmissionParseError::OtherKind { version: review.api_version, kind: review.kind }),
        }
    }

    /// Returns the name of the object in the request, or else in the new object.
    pub fn object_name(&self) -> &str {
        match self.name.as_str() {
            "" => read_text_at(&self.object, "/metadata/name"),
            name => name,
        }
    }

    /// Returns the current tier of the object and its new one.
    pub fn tiers(&self) -> [Option<&str>; 2] {
        [&self.old_object, &self.object].map(|object| match object {
            Value::Null => None,
            object => match read_text_at(object, "/spec/tier") {
                "" => Some(DEFAULT_TIER),
                tier => Some(tier),
            },
        })
    }

    /// Returns whether the object is being deleted. Only the controllers that remove their finalizers write such an
    /// object.
    pub fn is_being_deleted(&self) -> bool {
        self.object.pointer("/metadata/deletionTimestamp").is_some()
    }

    /// Builds the AdmissionReview response.
    pub fn build_response(&self, verdict: Result<(), StatusError>) -> Value {
        let response = match verdict {
            Ok(()) => json!({"uid": self.uid, "allowed": true}),
            Err(error) => json!({"uid": self.uid, "allowed": false,
                "status": {"code": error.code(), "reason": error.reason_name(), "message": error.message}}),
        };
        json!({"apiVersion": API_VERSION, "kind": KIND, "response": response})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn review(request: Value) -> Vec<u8> {
        json!({"apiVersion": API_VERSION, "kind": KIND, "request": request}).to_string().into_bytes()
    }

    #[test]
    fn admission_reviews_are_parsed() {
        let request = json!({"uid": "u", "operation": "UPDATE", "name": "p", "namespace": "shop",
            "userInfo": {"username": "jane", "groups": ["net"], "extra": {"a": ["b"]}},
            "resource": {"group": "projectcalico.org", "version": "v3", "resource": "networkpolicies"},
            "object": {"spec": {"tier": "net"}}, "oldObject": {"spec": {}}});
        let parsed = AdmissionRequest::parse(&review(request)).unwrap();
        assert_eq!(parsed.tiers(), [Some("default"), Some("net")]);
        assert_eq!((parsed.object_name(), parsed.namespace.as_str()), ("p", "shop"));
        assert_eq!((parsed.user_info.name.as_str(), parsed.user_info.groups.len()), ("jane", 1));
        assert_eq!(parsed.operation.verb(), Some(RequestVerb::Update));
        assert!(!parsed.is_being_deleted());
        let response = parsed.build_response(Err(StatusError::bad_request("no")));
        assert_eq!(response["response"]["uid"], "u");
        assert_eq!(
            response["response"]["status"],
            json!({"code": 400, "reason": "BadRequest", "message": "no"})
        );
    }

    #[test]
    fn bodies_without_admission_request_are_rejected() {
        for bad in [
            "{}",
            "[]",
            "no",
            r#"{"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": {"uid": "u",
                "operation": "CREATE", "userInfo": {}, "resource": {"group": "", "resource": ""}}}"#,
        ] {
            assert!(AdmissionRequest::parse(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(AdmissionRequest::parse(&review(json!({"uid": "u", "operation": "PROXY"}))).is_err());
    }
}
