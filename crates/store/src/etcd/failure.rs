//! Why a call failed, in words that say where to look next.

use super::auth::Auth;
use crate::Error;
use crate::config::Endpoint;
use std::error::Error as _;
use std::time::Duration;
use tonic::{Code, ConnectError, Status};

/// What became of one attempt.
#[derive(Debug)]
pub enum Failure {
    /// Never reached the server: safe to try elsewhere.
    NotSent(String),
    /// May or may not have been carried out.
    Lost(String),
    /// The server understood and refused.
    Refused(Status),
}

impl Failure {
    pub fn of(endpoint: &Endpoint, status: Status) -> Failure {
        if let Some(reason) = connect_error(&status) {
            return Failure::NotSent(unreachable(endpoint, &reason));
        }
        if status.source().is_some() {
            return Failure::Lost(broken(endpoint, &chain(&status)));
        }
        match status.code() {
            // These come from the server, but another one may do better.
            Code::Unavailable => {
                Failure::Lost(format!("etcd at {endpoint} cannot serve now: {}", status.message()))
            }
            Code::Unimplemented | Code::Internal => Failure::Lost(foreign(endpoint, status.message())),
            _ if status.message().contains("grpc-status header missing") => {
                Failure::Lost(foreign(endpoint, status.message()))
            }
            _ => Failure::Refused(status),
        }
    }

    pub fn silent(endpoint: &Endpoint, waited: Duration) -> Failure {
        Failure::Lost(format!(
            "no answer from {endpoint} within {}: something accepts connections there but does not answer; \
             check that it is the datastore's client port and that the datastore is healthy",
            seconds(waited)
        ))
    }

    pub fn into_error(self, endpoint: &Endpoint) -> Error {
        match self {
            Failure::NotSent(text) | Failure::Lost(text) => Error::Datastore(text),
            Failure::Refused(status) => explain(endpoint, &status),
        }
    }
}

/// The server's refusal as our error.
fn explain(endpoint: &Endpoint, status: &Status) -> Error {
    let message = status.message();
    if message.contains("invalid user ID or password") {
        return Error::Unauthorized(format!(
            "{endpoint} refused the user or the password (ETCD_USERNAME, ETCD_PASSWORD)"
        ));
    }
    if message.contains("user name is empty") {
        return Error::Unauthorized(format!(
            "{endpoint} wants a user and a password: set ETCD_USERNAME and ETCD_PASSWORD"
        ));
    }
    if matches!(status.code(), Code::PermissionDenied | Code::Unauthenticated) || Auth::is_stale(status) {
        return Error::Unauthorized(format!("{endpoint}: {message}"));
    }
    Error::Datastore(format!("{endpoint}: {message}"))
}

fn unreachable(endpoint: &Endpoint, reason: &str) -> String {
    let hint = if reason.contains("UnknownIssuer") || reason.contains("invalid peer certificate") {
        "the server's certificate is not trusted: check etcdCACertFile (ETCD_CA_CERT_FILE) and the names in the \
         certificate"
    } else if reason.contains("InvalidContentType") || reason.contains("corrupt message") {
        "the endpoint does not speak TLS: check whether it should be http instead of https"
    } else if reason.contains("alert") {
        "the server refused our TLS: check etcdCertFile and etcdKeyFile (ETCD_CERT_FILE, ETCD_KEY_FILE)"
    } else {
        "check that the datastore runs and that the endpoint is right (ETCD_ENDPOINTS, etcdEndpoints)"
    };
    format!("cannot connect to {endpoint}: {reason}; {hint}")
}

fn broken(endpoint: &Endpoint, reason: &str) -> String {
    if reason.contains("alert") {
        return format!(
            "{endpoint} refused our TLS: {reason}; check etcdCertFile and etcdKeyFile (ETCD_CERT_FILE, ETCD_KEY_FILE)"
        );
    }
    if reason.contains("frame") || reason.contains("protocol error") || reason.contains("PROTOCOL_ERROR") {
        return foreign(endpoint, reason);
    }
    format!(
        "the connection to {endpoint} broke before the answer came: {reason}; check that it is the datastore's client \
         port (https if the server wants TLS) and that the datastore is healthy"
    )
}

fn foreign(endpoint: &Endpoint, reason: &str) -> String {
    format!(
        "{endpoint} does not answer in the etcd v3 protocol: {reason}; check that the endpoint is the datastore's client \
         port and whether it wants http or https"
    )
}

fn connect_error(status: &Status) -> Option<String> {
    let mut source = status.source();
    while let Some(error) = source {
        if let Some(ConnectError(inner)) = error.downcast_ref::<ConnectError>() {
            return Some(inner.to_string());
        }
        source = error.source();
    }
    None
}

/// The causes, outermost first, without repetitions.
fn chain(status: &Status) -> String {
    let mut parts = vec![status.message().to_owned()];
    let mut source = status.source();
    while let Some(error) = source {
        let text = error.to_string();
        if !text.is_empty() && !parts.iter().any(|part| part.contains(&text)) {
            parts.push(text);
        }
        source = error.source();
    }
    parts.join(": ")
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
