//! Error responses in the format of Kubernetes: a Status with causes that name the field.

use crate::resources::{GROUP, ServedKind};
use serde::Serialize;
use serde_json::{Value, json};
use tortie_model::ValidationError;
use tortie_store::StoreError;

macro_rules! status_reasons {
    ($($(#[$doc:meta])* $reason:ident = $code:literal, $name:literal;)*) => {
        /// Reason of an error.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum StatusReason { $($(#[$doc])* $reason,)* }

        impl StatusReason {
            /// Returns the HTTP status code and the name in the API of Kubernetes.
            const fn code_and_name(self) -> (u16, &'static str) {
                match self { $(StatusReason::$reason => ($code, $name),)* }
            }
        }
    };
}

status_reasons! {
    BadRequest = 400, "BadRequest";
    Unauthorized = 401, "Unauthorized";
    Forbidden = 403, "Forbidden";
    NotFound = 404, "NotFound";
    MethodNotAllowed = 405, "MethodNotAllowed";
    NotAcceptable = 406, "NotAcceptable";
    Timeout = 408, "Timeout";
    AlreadyExists = 409, "AlreadyExists";
    Conflict = 409, "Conflict";
    /// A conflict with a concurrent change: a retry from the current object may succeed.
    Modified = 409, "Conflict";
    Expired = 410, "Expired";
    RequestEntityTooLarge = 413, "RequestEntityTooLarge";
    UnsupportedMediaType = 415, "UnsupportedMediaType";
    Invalid = 422, "Invalid";
    TooManyRequests = 429, "TooManyRequests";
    InternalError = 500, "InternalError";
    ServiceUnavailable = 503, "ServiceUnavailable";
}

#[derive(Clone, Debug, PartialEq)]
pub struct StatusError {
    pub reason: StatusReason,
    pub message: String,
    /// Boxed to keep `Result`s small: errors are rare.
    details: Option<Box<StatusDetails>>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct StatusDetails {
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    group: &'static str,
    /// The plural, or the kind if the object is invalid.
    #[serde(skip_serializing_if = "str::is_empty")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    causes: Vec<StatusCause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_seconds: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
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
    pub fn new(reason: StatusReason, message: impl Into<String>) -> StatusError {
        StatusError { reason, message: message.into(), details: None }
    }

    fn with_details(mut self, details: StatusDetails) -> StatusError {
        self.details = Some(Box::new(details));
        self
    }

    fn with_object(self, group: &'static str, kind: &'static str, name: &str) -> StatusError {
        self.with_details(StatusDetails { name: name.to_owned(), group, kind, ..StatusDetails::default() })
    }

    /// Adds that the client may try again in a second.
    fn with_retry(self) -> StatusError {
        self.with_details(StatusDetails { retry_after_seconds: Some(1), ..StatusDetails::default() })
    }

    /// Returns the HTTP status code.
    pub fn code(&self) -> u16 {
        self.reason.code_and_name().0
    }

    /// Returns the reason as a Status names it.
    pub fn reason_name(&self) -> &'static str {
        self.reason.code_and_name().1
    }

    pub fn bad_request(message: impl Into<String>) -> StatusError {
        StatusError::new(StatusReason::BadRequest, message)
    }

    pub fn forbidden(served: ServedKind, name: &str, why: &str) -> StatusError {
        let name_part = if name.is_empty() { String::new() } else { format!(" {name:?}") };
        let message = format!("{}{name_part} is forbidden: {why}", served.qualified_name());
        StatusError::new(StatusReason::Forbidden, message).with_object(GROUP, served.kind.plural(), name)
    }

    pub fn no_such_path() -> StatusError {
        StatusError::new(StatusReason::NotFound, "the server could not find the requested resource")
    }

    pub fn not_found(served: ServedKind, name: &str) -> StatusError {
        let message = format!("{} {name:?} not found", served.qualified_name());
        StatusError::new(StatusReason::NotFound, message).with_object(GROUP, served.kind.plural(), name)
    }

    pub fn namespace_not_found(name: &str) -> StatusError {
        StatusError::new(StatusReason::NotFound, format!("namespaces {name:?} not found")).with_object(
            "",
            "namespaces",
            name,
        )
    }

    pub fn method_not_allowed(what: &str) -> StatusError {
        StatusError::new(StatusReason::MethodNotAllowed, what)
    }

    pub fn not_acceptable() -> StatusError {
        let known = "application/json, application/yaml";
        let message = format!("only the following media types are accepted: {known}");
        StatusError::new(StatusReason::NotAcceptable, message)
    }

    pub fn already_exists(served: ServedKind, name: &str) -> StatusError {
        let message = format!("{} {name:?} already exists", served.qualified_name());
        StatusError::new(StatusReason::AlreadyExists, message).with_object(GROUP, served.kind.plural(), name)
    }

    pub fn conflict(served: ServedKind, name: &str, why: &str) -> StatusError {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", served.qualified_name());
        StatusError::new(StatusReason::Conflict, message).with_object(GROUP, served.kind.plural(), name)
    }

    /// Returns the error for an object that was modified concurrently.
    pub fn modified(served: ServedKind, name: &str) -> StatusError {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        StatusError { reason: StatusReason::Modified, ..StatusError::conflict(served, name, why) }
    }

    pub fn apply_conflict(message: String, causes: Vec<StatusCause>) -> StatusError {
        StatusError::new(StatusReason::Conflict, message)
            .with_details(StatusDetails { causes, ..StatusDetails::default() })
    }

    pub fn expired(message: impl Into<String>) -> StatusError {
        StatusError::new(StatusReason::Expired, message)
    }

    pub fn too_large(limit: usize) -> StatusError {
        StatusError::entity_too_large(format!("Request entity too large: limit is {limit}"))
    }

    pub fn entity_too_large(message: impl Into<String>) -> StatusError {
        StatusError::new(StatusReason::RequestEntityTooLarge, message)
    }

    pub fn unsupported_media_type(known: &str) -> StatusError {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {known}"
        );
        StatusError::new(StatusReason::UnsupportedMediaType, message)
    }

    pub fn unprocessable(message: impl Into<String>) -> StatusError {
        StatusError::new(StatusReason::Invalid, message)
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
            StatusDetails { name: name.to_owned(), group: GROUP, kind, causes, retry_after_seconds: None };
        StatusError::new(StatusReason::Invalid, message).with_details(details)
    }

    pub fn too_many_requests() -> StatusError {
        let message = "too many requests are being served, please try again later";
        StatusError::new(StatusReason::TooManyRequests, message).with_retry()
    }

    pub fn internal(message: impl Into<String>) -> StatusError {
        StatusError::new(StatusReason::InternalError, message)
    }

    pub fn unavailable(message: impl Into<String>) -> StatusError {
        StatusError::new(StatusReason::ServiceUnavailable, message).with_retry()
    }

    /// Converts an error of the store about an object.
    pub fn from_store(served: ServedKind, name: &str, error: StoreError) -> StatusError {
        match error {
            StoreError::AlreadyExists { .. } => StatusError::already_exists(served, name),
            StoreError::DoesNotExist { .. } => StatusError::not_found(served, name),
            StoreError::Conflict { .. } => StatusError::modified(served, name),
            StoreError::Validation(error) => StatusError::invalid(served, name, list_causes(&error)),
            StoreError::NotSupported { operation: "delete", reason, .. } => {
                StatusError::forbidden(served, name, &reason)
            }
            StoreError::NotSupported { .. } => StatusError::method_not_allowed(&error.to_string()),
            StoreError::InsufficientIdentifiers(missing) => {
                StatusError::bad_request(format!("{missing} must be provided"))
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
            "message": self.message, "reason": self.reason_name(), "code": self.code()});
        if let Some(details) = &self.details {
            status["details"] = json!(details);
        }
        status
    }

    pub fn retry_after(&self) -> Option<u32> {
        self.details.as_ref().and_then(|details| details.retry_after_seconds)
    }
}

fn list_causes(error: &ValidationError) -> Vec<StatusCause> {
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
        let status = StatusError::from_store(served, "p", error).to_status();
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
}
