//! Failures of requests to kube-apiserver, and their conversion to errors of this crate.

use super::response::ResponseError;
use crate::StoreError;
use kube::core::Status;
use tortie_model::StoreKey;

/// Reason for which a request failed.
#[derive(Debug)]
pub enum KubernetesFailure {
    Exists(String),
    Missing(String),
    /// The server does not have the kind.
    NotServed(String),
    Conflict,
    /// The requested resource version is no longer available.
    Expired(String),
    /// No response; `unasked` if it is certain that the server did not receive the request.
    Unreachable {
        reason: String,
        unasked: bool,
    },
    /// The response does not match the request.
    Response(ResponseError),
    /// The server rejected the credentials (401).
    Unknown(StoreError),
    /// The account lacks the right for the request (403). The kind need not exist.
    Forbidden(StoreError),
    Other(StoreError),
}

impl KubernetesFailure {
    pub fn of(error: kube::Error) -> KubernetesFailure {
        match error {
            kube::Error::Api(status) => KubernetesFailure::of_status(&status),
            other => {
                KubernetesFailure::Unreachable { unasked: is_connect(&other), reason: unreachable(&other) }
            }
        }
    }

    pub fn of_status(status: &Status) -> KubernetesFailure {
        let message = status.message.clone();
        match (status.code, status.reason.as_str()) {
            (_, "AlreadyExists") => KubernetesFailure::Exists(message),
            // Only a Status with the name of an object is about that object; proxies and missing kinds return other
            // 404s.
            (404, "NotFound") if status.details.as_ref().is_some_and(|details| !details.name.is_empty()) => {
                KubernetesFailure::Missing(message)
            }
            (404, _) => KubernetesFailure::NotServed(message),
            (409, _) => KubernetesFailure::Conflict,
            (410, _) | (_, "Expired" | "Gone") => KubernetesFailure::Expired(message),
            (401, _) => KubernetesFailure::Unknown(unauthorized(status)),
            (403, _) => KubernetesFailure::Forbidden(unauthorized(status)),
            (code, _) => KubernetesFailure::Other(StoreError::Datastore(format!(
                "the Kubernetes API refused the request ({code}): {message}"
            ))),
        }
    }

    pub fn silent(seconds: f64) -> KubernetesFailure {
        let reason = format!(
            "no answer from the Kubernetes API within {seconds:.1} s: check that the API server is healthy"
        );
        KubernetesFailure::Unreachable { reason, unasked: false }
    }

    /// Converts the failure to an error about an object.
    pub fn into_error(self, key: &StoreKey) -> StoreError {
        self.about(key.to_string())
    }

    /// Converts the failure to an error about the given object ID.
    pub fn about(self, id: String) -> StoreError {
        match self {
            KubernetesFailure::Exists(reason) => StoreError::AlreadyExists { id, reason, current: None },
            KubernetesFailure::Missing(reason) => StoreError::DoesNotExist { id, reason },
            // No proof of absence: a load balancer without a backend answers 404 as well.
            KubernetesFailure::NotServed(reason) => StoreError::Datastore(format!(
                "the API server does not serve the kind of {id}: {reason}; check that its definition is installed (`tortie crds`)"
            )),
            KubernetesFailure::Conflict => StoreError::Conflict { id, current: None },
            KubernetesFailure::Expired(_) => StoreError::Expired(id),
            KubernetesFailure::Unreachable { reason, .. } => StoreError::Datastore(reason),
            KubernetesFailure::Response(error) => StoreError::Response(error),
            KubernetesFailure::Unknown(error)
            | KubernetesFailure::Forbidden(error)
            | KubernetesFailure::Other(error) => error,
        }
    }

    /// Converts the failure to an error about a collection.
    pub fn into_collection_error(self, path: &str) -> StoreError {
        match self {
            KubernetesFailure::Unknown(error)
            | KubernetesFailure::Forbidden(error)
            | KubernetesFailure::Other(error) => error,
            KubernetesFailure::Unreachable { reason, .. } => StoreError::Datastore(reason),
            KubernetesFailure::Response(error) => StoreError::Response(error),
            KubernetesFailure::NotServed(reason)
            | KubernetesFailure::Expired(reason)
            | KubernetesFailure::Missing(reason)
            | KubernetesFailure::Exists(reason) => StoreError::Datastore(format!("{path}: {reason}")),
            KubernetesFailure::Conflict => StoreError::Datastore(format!("{path}: conflict")),
        }
    }
}

fn unauthorized(status: &Status) -> StoreError {
    StoreError::Unauthorized(format!(
        "{}; check the token and the RBAC rules of the account that is used",
        status.message
    ))
}

/// Returns whether the connection was never established.
fn is_connect(error: &kube::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let connecting = error.downcast_ref::<hyper_util::client::legacy::Error>();
        if connecting.is_some_and(hyper_util::client::legacy::Error::is_connect) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Formats the chain of causes, outermost first and without repetitions, with a hint on what to check.
fn unreachable(error: &kube::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let text = error.to_string();
        if !parts.iter().any(|part| part.contains(&text)) {
            parts.push(text);
        }
        cause = error.source();
    }
    format!(
        "cannot use the Kubernetes API: {}; check that the API server runs and that the kubeconfig names it",
        parts.join(": ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: u16, reason: &str, message: &str) -> Status {
        let details = serde_json::from_value(serde_json::json!({"name": "h"})).unwrap();
        let (reason, message) = (reason.into(), message.into());
        Status { code, reason, message, details: Some(details), ..Status::default() }
    }

    #[test]
    fn an_unserved_kind_is_no_missing_object() {
        let key = StoreKey::Handle { id: "h".into() };
        let unknown = Status { details: None, ..status(404, "", "404 page not found") };
        assert!(matches!(KubernetesFailure::of_status(&unknown), KubernetesFailure::NotServed(_)));
        let error = KubernetesFailure::of_status(&unknown).into_error(&key).to_string();
        assert!(error.contains("does not serve the kind of IPAMHandleKey(id=h)"), "{error}");
        assert!(matches!(
            KubernetesFailure::of_status(&status(404, "NotFound", "none")),
            KubernetesFailure::Missing(_)
        ));
    }

    #[test]
    fn refusals_are_distinguished() {
        let key = StoreKey::Handle { id: "h".into() };
        let text = |code, reason: &str, message: &str| {
            KubernetesFailure::of_status(&status(code, reason, message)).into_error(&key).to_string()
        };
        assert_eq!(
            text(409, "AlreadyExists", "it is there"),
            "resource already exists: IPAMHandleKey(id=h) with error: it is there"
        );
        assert_eq!(text(409, "Conflict", "modified"), "update conflict: IPAMHandleKey(id=h)");
        assert_eq!(
            text(404, "NotFound", "not found"),
            "resource does not exist: IPAMHandleKey(id=h) with error: not found"
        );
        assert!(text(410, "Expired", "too old").contains("too old"));
        assert!(text(403, "Forbidden", "no").starts_with("connection is unauthorized: no"));
        assert!(text(500, "InternalError", "etcd is down").contains("(500): etcd is down"));
    }
}
