//! AdmissionReview of admission.k8s.io/v1: parses the request of kube-apiserver and builds the response. No I/O.

use crate::refusal::StatusError;
use crate::request::RequestVerb;
use crate::write::text;
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

    /// Returns the name in the request, or that of the new object.
    pub fn object_name(&self) -> &str {
        match self.name.as_str() {
            "" => text(&self.object, "/metadata/name"),
            name => name,
        }
    }

    /// Returns the current tier of the object and its new one.
    pub fn tiers(&self) -> [Option<&str>; 2] {
        [&self.old_object, &self.object].map(|object| match object {
            Value::Null => None,
            object => match text(object, "/spec/tier") {
                "" => Some(DEFAULT_TIER),
                tier => Some(tier),
            },
        })
    }

    /// Returns whether the object is being deleted: then only the controllers that remove their finalizers still
    /// write it.
    pub fn is_leaving(&self) -> bool {
        self.object.pointer("/metadata/deletionTimestamp").is_some()
    }

    /// Builds the AdmissionReview response.
    pub fn answer(&self, verdict: Result<(), StatusError>) -> Value {
        let response = match verdict {
            Ok(()) => json!({"uid": self.uid, "allowed": true}),
            Err(refusal) => json!({"uid": self.uid, "allowed": false,
                "status": {"code": refusal.code(), "reason": refusal.reason_name(), "message": refusal.message}}),
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
    fn a_question_is_read() {
        let request = json!({"uid": "u", "operation": "UPDATE", "name": "p", "namespace": "shop",
            "userInfo": {"username": "jane", "groups": ["net"], "extra": {"a": ["b"]}},
            "resource": {"group": "projectcalico.org", "version": "v3", "resource": "networkpolicies"},
            "object": {"spec": {"tier": "net"}}, "oldObject": {"spec": {}}});
        let question = AdmissionRequest::parse(&review(request)).unwrap();
        assert_eq!(question.tiers(), [Some("default"), Some("net")]);
        assert_eq!((question.object_name(), question.namespace.as_str()), ("p", "shop"));
        assert_eq!((question.user_info.name.as_str(), question.user_info.groups.len()), ("jane", 1));
        assert_eq!(question.operation.verb(), Some(RequestVerb::Update));
        assert!(!question.is_leaving());
        let answer = question.answer(Err(StatusError::bad_request("no")));
        assert_eq!(answer["response"]["uid"], "u");
        assert_eq!(
            answer["response"]["status"],
            json!({"code": 400, "reason": "BadRequest", "message": "no"})
        );
    }

    #[test]
    fn what_is_no_question_is_refused() {
        for bad in [
            "{}",
            "[]",
            "no",
            r#"{"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": {"uid": "u",
                "operation": "CREATE", "userInfo": {}, "resource": {"group": "", "resource": ""}}}"#,
        ] {
            assert!(AdmissionRequest::parse(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(AdmissionRequest::parse(&review(json!({"uid": "u", "operation": "DANCE"}))).is_err());
    }
}
