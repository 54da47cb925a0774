//! Error responses in the format of Kubernetes: a Status with causes that name the field.

use crate::resources::{GROUP, Served};
use serde_json::{Value, json};
use tortie_model::ValidationError;
use tortie_store::Error;

#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
    /// Boxed to keep `Result`s small: errors are rare.
    details: Option<Box<Details>>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Details {
    name: String,
    /// The plural, or the kind if the object is invalid.
    kind: String,
    causes: Vec<Cause>,
    retry_after: Option<u32>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Cause {
    pub reason: &'static str,
    pub message: String,
    pub field: String,
}

impl Cause {
    pub fn invalid(field: &str, value: &str, reason: &str) -> Cause {
        Cause {
            reason: "FieldValueInvalid",
            message: format!("Invalid value: {value:?}: {reason}"),
            field: field.to_owned(),
        }
    }
}

impl Refusal {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Refusal {
        Refusal { code, reason, message: message.into(), details: None }
    }

    fn about(mut self, served: Served, name: &str) -> Refusal {
        let kind = served.kind.plural().to_owned();
        self.details = Some(Box::new(Details { name: name.to_owned(), kind, ..Details::default() }));
        self
    }

    pub fn bad_request(message: impl Into<String>) -> Refusal {
        Refusal::new(400, "BadRequest", message)
    }

    pub fn unauthorized() -> Refusal {
        Refusal::new(401, "Unauthorized", "Unauthorized")
    }

    pub fn forbidden(served: Served, name: &str, why: &str) -> Refusal {
        let name_part = if name.is_empty() { String::new() } else { format!(" {name:?}") };
        let message = format!("{}{name_part} is forbidden: {why}", served.qualified());
        Refusal::new(403, "Forbidden", message).about(served, name)
    }

    pub fn forbidden_path(why: String) -> Refusal {
        Refusal::new(403, "Forbidden", why)
    }

    pub fn no_such_path() -> Refusal {
        Refusal::new(404, "NotFound", "the server could not find the requested resource")
    }

    pub fn not_found(served: Served, name: &str) -> Refusal {
        let message = format!("{} {name:?} not found", served.qualified());
        Refusal::new(404, "NotFound", message).about(served, name)
    }

    pub fn namespace_not_found(name: &str) -> Refusal {
        let mut refusal = Refusal::new(404, "NotFound", format!("namespaces {name:?} not found"));
        refusal.details = Some(Box::new(Details {
            name: name.to_owned(),
            kind: "namespaces".to_owned(),
            ..Details::default()
        }));
        refusal
    }

    pub fn method_not_allowed(what: &str) -> Refusal {
        Refusal::new(405, "MethodNotAllowed", what)
    }

    pub fn not_acceptable() -> Refusal {
        let known = "application/json, application/yaml";
        Refusal::new(406, "NotAcceptable", format!("only the following media types are accepted: {known}"))
    }

    pub fn already_exists(served: Served, name: &str) -> Refusal {
        let message = format!("{} {name:?} already exists", served.qualified());
        Refusal::new(409, "AlreadyExists", message).about(served, name)
    }

    pub fn conflict(served: Served, name: &str, why: &str) -> Refusal {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", served.qualified());
        Refusal::new(409, "Conflict", message).about(served, name)
    }

    /// The object was modified concurrently.
    pub fn modified(served: Served, name: &str) -> Refusal {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        Refusal::conflict(served, name, why)
    }

    /// Returns whether a retry from the current object may succeed.
    pub fn is_race(&self) -> bool {
        self.code == 409 && self.message.contains("the object has been modified")
    }

    pub fn apply_conflict(message: String, causes: Vec<Cause>) -> Refusal {
        let details = Details { causes, ..Details::default() };
        Refusal { code: 409, reason: "Conflict", message, details: Some(Box::new(details)) }
    }

    pub fn expired(message: impl Into<String>) -> Refusal {
        Refusal::new(410, "Expired", message)
    }

    pub fn too_large(limit: usize) -> Refusal {
        Refusal::entity_too_large(format!("Request entity too large: limit is {limit}"))
    }

    pub fn entity_too_large(message: impl Into<String>) -> Refusal {
        Refusal::new(413, "RequestEntityTooLarge", message)
    }

    pub fn request_timeout(message: impl Into<String>) -> Refusal {
        Refusal::new(408, "Timeout", message)
    }

    pub fn unsupported_media_type(known: &str) -> Refusal {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {known}"
        );
        Refusal::new(415, "UnsupportedMediaType", message)
    }

    pub fn unprocessable(message: impl Into<String>) -> Refusal {
        Refusal::new(422, "Invalid", message)
    }

    pub fn invalid(served: Served, name: &str, causes: Vec<Cause>) -> Refusal {
        let texts: Vec<String> =
            causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        let list = match texts.as_slice() {
            [only] => only.clone(),
            _ => format!("[{}]", texts.join(", ")),
        };
        let kind = served.kind.name();
        let message = format!("{kind}.{GROUP} {name:?} is invalid: {list}");
        let details = Details { name: name.to_owned(), kind: kind.to_owned(), causes, retry_after: None };
        Refusal { code: 422, reason: "Invalid", message, details: Some(Box::new(details)) }
    }

    pub fn too_many_requests() -> Refusal {
        let mut refusal = Refusal::new(
            429,
            "TooManyRequests",
            "too many requests are being served, please try again later",
        );
        refusal.details = Some(Box::new(Details { retry_after: Some(1), ..Details::default() }));
        refusal
    }

    pub fn internal(message: impl Into<String>) -> Refusal {
        Refusal::new(500, "InternalError", message)
    }

    pub fn unavailable(message: impl Into<String>) -> Refusal {
        let mut refusal = Refusal::new(503, "ServiceUnavailable", message);
        refusal.details = Some(Box::new(Details { retry_after: Some(1), ..Details::default() }));
        refusal
    }

    /// Converts an error of the store about an object.
    pub fn of_store(served: Served, name: &str, error: Error) -> Refusal {
        match error {
            Error::AlreadyExists { .. } => Refusal::already_exists(served, name),
            Error::DoesNotExist { reason, .. } => match other_object(&reason) {
                Some(namespace) => Refusal::namespace_not_found(namespace),
                None => Refusal::not_found(served, name),
            },
            Error::Conflict { .. } => Refusal::modified(served, name),
            Error::Validation(error) => Refusal::invalid(served, name, causes(&error)),
            Error::NotSupported { operation: "delete", reason, .. } => {
                Refusal::forbidden(served, name, &reason)
            }
            Error::NotSupported { .. } => Refusal::method_not_allowed(&error.to_string()),
            Error::InsufficientIdentifiers(missing) => {
                Refusal::bad_request(format!("{missing} must be provided"))
            }
            // Kubernetes rejects writes to a namespace that is being deleted.
            Error::Unauthorized(reason) if reason.contains("being terminated") => {
                Refusal::forbidden(served, name, &reason)
            }
            Error::Expired(_) => Refusal::expired(format!("{error}")),
            Error::Datastore(reason) => Refusal::unavailable(reason),
            Error::Response(_) | Error::Absence { .. } => Refusal::unavailable(error.to_string()),
            Error::Unauthorized(_) | Error::Parse { .. } | Error::Config(_) => {
                Refusal::internal(error.to_string())
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
                let cause = |cause: &Cause| json!({"reason": cause.reason, "message": cause.message, "field": cause.field});
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

fn causes(error: &ValidationError) -> Vec<Cause> {
    error.errors.iter().map(|error| Cause::invalid(&error.name, &error.value, &error.reason)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tortie_model::Kind;

    #[test]
    fn causes_name_the_field() {
        let served = Served::find(Kind::IPPool.plural()).unwrap();
        let error =
            Error::Validation(ValidationError::one("IPPool.Spec.CIDR", "10.0.0.0/33", "invalid CIDR"));
        let status = Refusal::of_store(served, "p", error).to_status();
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
        let served = Served::find(Kind::NetworkSet.plural()).unwrap();
        let missing = |reason: &str| {
            let error = Error::DoesNotExist { id: "NetworkSet(shop/x)".into(), reason: reason.into() };
            Refusal::of_store(served, "x", error).message
        };
        assert_eq!(missing("namespaces \"shop\" not found"), "namespaces \"shop\" not found");
        assert_eq!(missing("key not found"), "networksets.projectcalico.org \"x\" not found");
    }
}
