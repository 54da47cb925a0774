//! What the API server refuses, as our errors.

use crate::Error;
use kube::core::Status;
use tortie_model::Key;

/// Why a request about one object failed.
#[derive(Debug)]
pub enum Failure {
    Exists(String),
    Missing(String),
    Conflict,
    /// The moment that was asked for is no longer known.
    Expired(String),
    Other(Error),
}

impl Failure {
    pub fn of(error: kube::Error) -> Failure {
        match error {
            kube::Error::Api(status) => Failure::of_status(&status),
            other => Failure::Other(Error::Datastore(unreachable(&other))),
        }
    }

    pub fn of_status(status: &Status) -> Failure {
        let message = || status.message.clone();
        match (status.code, status.reason.as_str()) {
            (_, "AlreadyExists") => Failure::Exists(message()),
            (404, _) => Failure::Missing(message()),
            // Another object of the same name: the one that was meant is gone.
            (409, _) if status.message.contains("UID in precondition") => Failure::Missing(message()),
            (409, _) => Failure::Conflict,
            (410, _) | (_, "Expired" | "Gone") => Failure::Expired(message()),
            (401 | 403, _) => Failure::Other(Error::Unauthorized(format!(
                "{}; check the token and the RBAC rules of the account that is used",
                status.message
            ))),
            (code, _) => Failure::Other(Error::Datastore(format!(
                "the Kubernetes API refused the request ({code}): {}",
                status.message
            ))),
        }
    }

    pub fn silent(seconds: f64) -> Failure {
        Failure::Other(Error::Datastore(format!(
            "no answer from the Kubernetes API within {seconds:.1} s: check that the API server is healthy"
        )))
    }

    /// The error about an object of which nothing more is known.
    pub fn into_error(self, key: &Key) -> Error {
        let id = key.to_string();
        match self {
            Failure::Exists(reason) => Error::AlreadyExists { id, reason, current: None },
            Failure::Missing(reason) => Error::DoesNotExist { id, reason },
            Failure::Conflict => Error::Conflict { id, current: None },
            Failure::Expired(_) => Error::Expired(id),
            Failure::Other(error) => error,
        }
    }
}

/// The causes, outermost first, without repetitions, and where to look next.
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
        Status { code, reason: reason.into(), message: message.into(), ..Status::default() }
    }

    #[test]
    fn refusals_are_distinguished() {
        let key = Key::Handle { id: "h".into() };
        let text = |code, reason: &str, message: &str| {
            Failure::of_status(&status(code, reason, message)).into_error(&key).to_string()
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
        let replaced = "Precondition failed: UID in precondition: a, UID in object meta: b";
        assert!(text(409, "Conflict", replaced).starts_with("resource does not exist: "));
        assert!(text(410, "Expired", "too old").contains("too old"));
        assert!(text(403, "Forbidden", "no").starts_with("connection is unauthorized: no"));
        assert!(text(500, "InternalError", "etcd is down").contains("(500): etcd is down"));
    }
}
