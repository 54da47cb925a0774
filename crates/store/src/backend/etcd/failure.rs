//! Failures of etcd calls, and error messages that name what to check.

use super::channel::TlsHandshakeError;
use crate::StoreError;
use crate::config::EtcdEndpoint;
use h2::Reason;
use std::error::Error as _;
use std::io;
use std::time::Duration;
use tokio_rustls::rustls::Error as TlsError;
use tonic::{Code, ConnectError, Status};

/// Result of a failed attempt. It determines whether the call may be repeated.
#[derive(Debug)]
pub enum EtcdFailure {
    /// The request never reached the server and can be sent to another one.
    NotSent(String),
    /// The connection turned out to be closed before anything was sent.
    Stale(String),
    /// The connection broke or the response is invalid: the server may have executed the request.
    Lost(String),
    /// No response in time: the server may have executed the request.
    Silent(String),
    /// The server processed and rejected the request.
    Refused(StoreError),
}

impl EtcdFailure {
    pub fn of(endpoint: &EtcdEndpoint, status: Status) -> EtcdFailure {
        if let Some(error) = causes(&status).find_map(|error| error.downcast_ref::<ConnectError>()) {
            return EtcdFailure::NotSent(explain_unreachable(endpoint, error));
        }
        if has_timed_out(&status) {
            return EtcdFailure::Lost(explain_unresponsive(endpoint));
        }
        if status.source().is_some() {
            let text = explain_broken_connection(endpoint, &status);
            return if was_unsent(&status) { EtcdFailure::Stale(text) } else { EtcdFailure::Lost(text) };
        }
        match status.code() {
            // The server reports these errors, but another member may succeed.
            Code::Unavailable => {
                EtcdFailure::Lost(format!("etcd at {endpoint} cannot serve now: {}", status.message()))
            }
            // etcd assigns a more specific code to its errors. tonic reports `Unknown` for a response without a gRPC
            // status, for example from another server or from a proxy that truncates responses: the outcome is unknown.
            Code::Unimplemented | Code::Internal | Code::Unknown => {
                EtcdFailure::Lost(explain_foreign_server(endpoint, status.message()))
            }
            _ => EtcdFailure::Refused(convert_status(endpoint, &status)),
        }
    }

    /// Interprets the failure of a request for a token. An invalid argument is a wrong user or password.
    pub fn of_authentication(endpoint: &EtcdEndpoint, status: Status) -> EtcdFailure {
        if status.code() != Code::InvalidArgument {
            return EtcdFailure::of(endpoint, status);
        }
        EtcdFailure::Refused(StoreError::Unauthorized(format!(
            "{endpoint} refused the user or the password (ETCD_USERNAME, ETCD_PASSWORD)"
        )))
    }

    pub fn silent(endpoint: &EtcdEndpoint, waited: Duration) -> EtcdFailure {
        EtcdFailure::Silent(format!(
            "no answer from {endpoint} within {}: something accepts connections there but does not answer; \
             check that it is the datastore's client port and that the datastore is healthy",
            format_seconds(waited)
        ))
    }

    pub fn into_error(self) -> StoreError {
        match self {
            EtcdFailure::NotSent(text)
            | EtcdFailure::Stale(text)
            | EtcdFailure::Lost(text)
            | EtcdFailure::Silent(text) => StoreError::Datastore(text),
            EtcdFailure::Refused(error) => error,
        }
    }
}

/// Error of a request without a user while authentication is enabled. etcd identifies it by its exact text, as its own
/// client does: requests that are too large have the same code.
const USER_NAME_EMPTY: &str = "etcdserver: user name is empty";

/// Maps an error reported by the server to the error of this crate.
fn convert_status(endpoint: &EtcdEndpoint, status: &Status) -> StoreError {
    let message = status.message();
    match status.code() {
        // The revision of the request was compacted, or is in the future of a store that was restored. The callers need
        // no distinction: neither revision can be read.
        Code::OutOfRange => {
            StoreError::Expired(format!("the revision of the request to {endpoint} ({message})"))
        }
        Code::InvalidArgument if message == USER_NAME_EMPTY => StoreError::Unauthorized(format!(
            "{endpoint} wants a user and a password: set ETCD_USERNAME and ETCD_PASSWORD"
        )),
        Code::PermissionDenied | Code::Unauthenticated => {
            StoreError::Unauthorized(format!("{endpoint}: {message}"))
        }
        _ => StoreError::Datastore(format!("{endpoint}: {message}")),
    }
}

fn explain_unreachable(endpoint: &EtcdEndpoint, error: &ConnectError) -> String {
    let reason = &error.0;
    let handshake = reason.downcast_ref::<io::Error>().and_then(find_inner::<TlsHandshakeError>);
    if let (EtcdEndpoint::Unix { .. }, Some(error)) = (endpoint, reason.downcast_ref::<io::Error>())
        && error.kind() == io::ErrorKind::PermissionDenied
    {
        return format!("cannot connect to {endpoint}: {reason}; run as root");
    }
    let hint = match handshake.map(|handshake| find_inner::<TlsError>(&handshake.0)) {
        Some(Some(TlsError::InvalidCertificate(_))) => {
            "the server's certificate is not trusted: check etcdCACertFile (ETCD_CA_CERT_FILE) and the names in the \
             certificate"
        }
        Some(Some(TlsError::AlertReceived(_))) => {
            "the server rejected the TLS handshake: check etcdCertFile and etcdKeyFile (ETCD_CERT_FILE, ETCD_KEY_FILE)"
        }
        Some(_) => "the server does not use TLS: check whether the endpoint should be http instead of https",
        None => {
            "check that the datastore runs and that the endpoint is right (ETCD_ENDPOINTS, etcdEndpoints)"
        }
    };
    format!("cannot connect to {endpoint}: {reason}; {hint}")
}

/// Returns the error that an I/O error was made from.
fn find_inner<T: std::error::Error + 'static>(error: &io::Error) -> Option<&T> {
    error.get_ref()?.downcast_ref()
}

fn explain_broken_connection(endpoint: &EtcdEndpoint, status: &Status) -> String {
    let reason = join_causes(status);
    if matches!(endpoint, EtcdEndpoint::Tcp { tls: true, .. }) && has_invalid_data(status) {
        return format!(
            "the TLS connection to {endpoint} failed: {reason}; check etcdCertFile and etcdKeyFile (ETCD_CERT_FILE, ETCD_KEY_FILE)"
        );
    }
    if violates_http2(status) {
        return explain_foreign_server(endpoint, &reason);
    }
    if has_ended_early(status) {
        return format!(
            "no answer from {endpoint}: it closed the connection or did not answer its pings; check that the datastore is \
             healthy"
        );
    }
    let hint = match endpoint {
        EtcdEndpoint::Tcp { tls: true, .. } => {
            "and, if it wants client certificates, etcdCertFile and etcdKeyFile"
        }
        EtcdEndpoint::Tcp { .. } => "(https if the server wants TLS)",
        EtcdEndpoint::Unix { .. } => "and not another program's",
    };
    format!(
        "the connection to {endpoint} broke before the answer came: {reason}; check that the datastore is healthy and \
         that the endpoint is its client port {hint}"
    )
}

fn explain_unresponsive(endpoint: &EtcdEndpoint) -> String {
    format!(
        "no answer from {endpoint} to the pings of the connection: the datastore hangs, or packets to it are lost; \
         check that the datastore is healthy"
    )
}

/// Returns whether the transport delivered invalid data. With TLS this is its only error after the handshake, for example
/// if the server rejects the client's certificate. h2 keeps the kind of the I/O error, but not its source.
fn has_invalid_data(status: &Status) -> bool {
    causes(status).any(|error| {
        let h2_error = error.downcast_ref::<h2::Error>().and_then(h2::Error::get_io);
        let io_error = error.downcast_ref::<io::Error>().or(h2_error);
        io_error.is_some_and(|error| error.kind() == io::ErrorKind::InvalidData)
    })
}

/// Returns whether the connection ended during a response. h2 reports the same error for streams if the server closed the
/// connection and if hyper dropped it because pings were not answered.
fn has_ended_early(status: &Status) -> bool {
    let mut h2_errors = causes(status).filter_map(|error| error.downcast_ref::<h2::Error>()?.get_io());
    h2_errors.any(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Returns whether one side ended the connection because the other does not follow HTTP/2.
fn violates_http2(status: &Status) -> bool {
    causes(status).filter_map(|error| error.downcast_ref::<h2::Error>()?.reason()).any(|reason| {
        matches!(
            reason,
            Reason::PROTOCOL_ERROR
                | Reason::FRAME_SIZE_ERROR
                | Reason::COMPRESSION_ERROR
                | Reason::STREAM_CLOSED
                | Reason::HTTP_1_1_REQUIRED
        )
    })
}

fn explain_foreign_server(endpoint: &EtcdEndpoint, reason: &str) -> String {
    format!(
        "{endpoint} does not answer in the etcd v3 protocol: {reason}; check that the endpoint is the datastore's client \
         port and whether it wants http or https"
    )
}

fn causes(status: &Status) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    std::iter::successors(status.source(), |error| (*error).source())
}

/// Returns whether the server did not answer the pings of the connection.
fn has_timed_out(status: &Status) -> bool {
    causes(status).filter_map(|error| error.downcast_ref::<hyper::Error>()).any(hyper::Error::is_timeout)
}

/// Returns whether hyper cancelled the request before sending it.
fn was_unsent(status: &Status) -> bool {
    causes(status).filter_map(|error| error.downcast_ref::<hyper::Error>()).any(hyper::Error::is_canceled)
}

/// Returns the chain of causes, outermost first, without repetitions.
fn join_causes(status: &Status) -> String {
    let mut parts = vec![status.message().to_owned()];
    for text in causes(status).map(ToString::to_string) {
        if !text.is_empty() && !parts.iter().any(|part| part.contains(&text)) {
            parts.push(text);
        }
    }
    parts.join(": ")
}

fn format_seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
