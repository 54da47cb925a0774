//! Error responses in the format of Kubernetes: a Status with causes that name the field.

use crate::resources::{GROUP, ServedKind};
use serde_json::{Value, json};
use tortie_model::ValidationError;
use tortie_store::StoreError;

#[derive(Clone, Debug, PartialEq)]
pub struct StatusError {
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
    /// Boxed to keep `Result`s small: errors are rare.
    details: Option<Box<StatusDetails>>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct StatusDetails {
    name: String,
    /// The plural, or the kind if the object is invalid.
    kind: String,
    causes: Vec<StatusCause>,
    retry_after: Option<u32>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct StatusCause {
    pub reason: &'static str,
    pub message: String,
    pub field: String,
}

impl StatusCause {
    pub fn invalid(field: &str, value: &str, reason: &str) -> StatusCause {
        StatusCause {
            reason: "FieldValueInvalid",
            message: format!("Invalid value: {value:?}: {reason}"),
            field: field.to_owned(),
        }
    }
}

impl StatusError {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> StatusError {
        StatusError { code, reason, message: message.into(), details: None }
    }

    fn about(mut self, served: ServedKind, name: &str) -> StatusError {
        let kind = served.kind.plural().to_owned();
        self.details =
            Some(Box::new(StatusDetails { name: name.to_owned(), kind, ..StatusDetails::default() }));
        self
    }

    pub fn bad_request(message: impl Into<String>) -> StatusError {
        StatusError::new(400, "BadRequest", message)
    }

    pub fn unauthorized() -> StatusError {
        StatusError::new(401, "Unauthorized", "Unauthorized")
    }

    pub fn forbidden(served: ServedKind, name: &str, why: &str) -> StatusError {
        let name_part = if name.is_empty() { String::new() } else { format!(" {name:?}") };
        let message = format!("{}{name_part} is forbidden: {why}", served.qualified());
        StatusError::new(403, "Forbidden", message).about(served, name)
    }

    pub fn forbidden_path(why: String) -> StatusError {
        StatusError::new(403, "Forbidden", why)
    }

    pub fn no_such_path() -> StatusError {
        StatusError::new(404, "NotFound", "the server could not find the requested resource")
    }

    pub fn not_found(served: ServedKind, name: &str) -> StatusError {
        let message = format!("{} {name:?} not found", served.qualified());
        StatusError::new(404, "NotFound", message).about(served, name)
    }

    pub fn namespace_not_found(name: &str) -> StatusError {
        let mut refusal = StatusError::new(404, "NotFound", format!("namespaces {name:?} not found"));
        refusal.details = Some(Box::new(StatusDetails {
            name: name.to_owned(),
            kind: "namespaces".to_owned(),
            ..StatusDetails::default()
        }));
        refusal
    }

    pub fn method_not_allowed(what: &str) -> StatusError {
        StatusError::new(405, "MethodNotAllowed", what)
    }

    pub fn not_acceptable() -> StatusError {
        let known = "application/json, application/yaml";
        StatusError::new(
            406,
            "NotAcceptable",
            format!("only the following media types are accepted: {known}"),
        )
    }

    pub fn already_exists(served: ServedKind, name: &str) -> StatusError {
        let message = format!("{} {name:?} already exists", served.qualified());
        StatusError::new(409, "AlreadyExists", message).about(served, name)
    }

    pub fn conflict(served: ServedKind, name: &str, why: &str) -> StatusError {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", served.qualified());
        StatusError::new(409, "Conflict", message).about(served, name)
    }

    /// The object was modified concurrently.
    pub fn modified(served: ServedKind, name: &str) -> StatusError {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        StatusError::conflict(served, name, why)
    }

    /// Returns whether a retry from the current object may succeed.
    pub fn is_race(&self) -> bool {
        self.code == 409 && self.message.contains("the object has been modified")
    }

    pub fn apply_conflict(message: String, causes: Vec<StatusCause>) -> StatusError {
        let details = StatusDetails { causes, ..StatusDetails::default() };
        StatusError { code: 409, reason: "Conflict", message, details: Some(Box::new(details)) }
    }

    pub fn expired(message: impl Into<String>) -> StatusError {
        StatusError::new(410, "Expired", message)
    }

    pub fn too_large(limit: usize) -> StatusError {
        StatusError::entity_too_large(format!("Request entity too large: limit is {limit}"))
    }

    pub fn entity_too_large(message: impl Into<String>) -> StatusError {
        StatusError::new(413, "RequestEntityTooLarge", message)
    }

    pub fn request_timeout(message: impl Into<String>) -> StatusError {
        StatusError::new(408, "Timeout", message)
    }

    pub fn unsupported_media_type(known: &str) -> StatusError {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {known}"
        );
        StatusError::new(415, "UnsupportedMediaType", message)
    }

    pub fn unprocessable(message: impl Into<String>) -> StatusError {
        StatusError::new(422, "Invalid", message)
    }

    pub fn invalid(served: ServedKind, name: &str, causes: Vec<StatusCause>) -> StatusError {
        let texts: Vec<String> =
            causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        let list = match texts.as_slice() {
            [only] => only.clone(),
            _ => format!("[{}]", texts.join(", ")),
        };
        let kind = served.kind.name();
        let message = format!("{kind}.{GROUP} {name:?} is invalid: {list}");
        let details =
            StatusDetails { name: name.to_owned(), kind: kind.to_owned(), causes, retry_after: None };
        StatusError { code: 422, reason: "Invalid", message, details: Some(Box::new(details)) }
    }

    pub fn too_many_requests() -> StatusError {
        let mut refusal = StatusError::new(
            429,
            "TooManyRequests",
            "too many requests are being served, please try again later",
        );
        refusal.details = Some(Box::new(StatusDetails { retry_after: Some(1), ..StatusDetails::default() }));
        refusal
    }

    pub fn internal(message: impl Into<String>) -> StatusError {
        StatusError::new(500, "InternalError", message)
    }

    pub fn unavailable(message: impl Into<String>) -> StatusError {
        let mut refusal = StatusError::new(503, "ServiceUnavailable", message);
        refusal.details = Some(Box::new(StatusDetails { retry_after: Some(1), ..StatusDetails::default() }));
        refusal
    }

    /// Converts an error of the store about an object.
    pub fn of_store(served: ServedKind, name: &str, error: StoreError) -> StatusError {
        match error {
            StoreError::AlreadyExists { .. } => StatusError::already_exists(served, name),
            StoreError::DoesNotExist { reason, .. } => match other_object(&reason) {
                Some(namespace) => StatusError::namespace_not_found(namespace),
                None => StatusError::not_found(served, name),
            },
            StoreError::Conflict { .. } => StatusError::modified(served, name),
            StoreError::Validation(error) => StatusError::invalid(served, name, causes(&error)),
            StoreError::NotSupported { operation: "delete", reason, .. } => {
                StatusError::forbidden(served, name, &reason)
            }
            StoreError::NotSupported { .. } => StatusError::method_not_allowed(&error.to_string()),
            StoreError::InsufficientIdentifiers(missing) => {
                StatusError::bad_request(format!("{missing} must be provided"))
            }
            // Kubernetes rejects writes to a namespace that is being deleted.
            StoreError::Unauthorized(reason) if reason.contains("being terminated") => {
                StatusError::forbidden(served, name, &reason)
            }
            StoreError::Expired(_) => StatusError::expired(format!("{error}")),
            StoreError::Datastore(reason) => StatusError::unavailable(reason),
            StoreError::Response(_) | StoreError::Absence { .. } => {
                StatusError::unavailable(error.to_string())
            }
            StoreError::Unauthorized(_) | StoreError::Parse { .. } | StoreError::Config(_) => {
                StatusError::internal(error.to_string())
            }
        }
    }

    pub fn to_status(&self) -> Value {
        let mut status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code});
        if let Some(details) = &self.details {
            let mut fields = json!({});
            if !details.name.is_empty() {
                fields["name"] = details.name.as_str().into();
            }
            if !details.kind.is_empty() {
                if details.kind != "namespaces" {
                    fields["group"] = GROUP.into();
                }
                fields["kind"] = details.kind.as_str().into();
            }
            if !details.causes.is_empty() {
                let cause = |cause: &StatusCause| json!({"reason": cause.reason, "message": cause.message, "field": cause.field});
                fields["causes"] = details.causes.iter().map(cause).collect();
            }
            if let Some(seconds) = details.retry_after {
                fields["retryAfterSeconds"] = seconds.into();
            }
            status["details"] = fields;
        }
        status
    }

    pub fn retry_after(&self) -> Option<u32> {
        self.details.as_ref().and_then(|details| details.retry_after)
    }
}

/// Returns the missing namespace, if that is missing and not the object itself.
fn other_object(reason: &str) -> Option<&str> {
    reason.strip_prefix("namespaces \"")?.strip_suffix("\" not found")
}

fn causes(error: &ValidationError) -> Vec<StatusCause> {
    error.errors.iter().map(|error| StatusCause::invalid(&error.name, &error.value, &error.reason)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tortie_model::Kind;

    #[test]
    fn causes_name_the_field() {
        let served = ServedKind::find(Kind::IPPool.plural()).unwrap();
        let error =
            StoreError::Validation(ValidationError::one("IPPool.Spec.CIDR", "10.0.0.0/33", "invalid CIDR"));
        let status = StatusError::of_store(served, "p", error).to_status();
        assert_eq!(
            status["message"],
            "IPPool.projectcalico.org \"p\" is invalid: IPPool.Spec.CIDR: Invalid value: \"10.0.0.0/33\": invalid CIDR"
        );
        assert_eq!((&status["code"], &status["reason"]), (&json!(422), &json!("Invalid")));
        assert_eq!(
            status["details"],
            json!({"name": "p", "group": GROUP, "kind": "IPPool", "causes": [{"reason": "FieldValueInvalid",
                "message": "Invalid value: \"10.0.0.0/33\": invalid CIDR", "field": "IPPool.Spec.CIDR"}]})
        );
    }

    #[test]
    fn a_missing_namespace_is_not_a_missing_object() {
        let served = ServedKind::find(Kind::NetworkSet.plural()).unwrap();
        let missing = |reason: &str| {
            let error = StoreError::DoesNotExist { id: "NetworkSet(shop/x)".into(), reason: reason.into() };
            StatusError::of_store(served, "x", error).message
        };
        assert_eq!(missing("namespaces \"shop\" not found"), "namespaces \"shop\" not found");
        assert_eq!(missing("key not found"), "networksets.projectcalico.org \"x\" not found");
    }
}
