//! Decides which requests are served: the session, the `Host` and `Origin` headers, the header against cross-site
//! requests, and the rate. Adds the security headers to every response.

mod rate;
mod sessions;

pub use sessions::{SESSION_LIFETIME, SessionTable};

use crate::error::ApiError;
use crate::metrics::ConsoleMetrics;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use rate::RateLimit;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Header that requests other than GET must have. Pages of other origins cannot set it without a preflight request,
/// which the console does not answer.
pub const REQUEST_HEADER: &str = "x-tortie-console";
/// Time for reading and answering a request; streams may last longer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const SECURITY_HEADERS: [(HeaderName, &str); 5] = [
    (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// How the clients of the listener prove that they may use the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessMode {
    /// The permissions of the socket, or the certificate of the connection, have been checked.
    Connection { tls: bool },
    /// The cookie of a session; the port is part of its name, because browsers send cookies to all ports of a host.
    Session { port: u16 },
}

#[derive(Debug)]
pub struct AccessControl {
    pub mode: AccessMode,
    pub sessions: Mutex<SessionTable>,
    pub metrics: ConsoleMetrics,
    rate: Mutex<RateLimit>,
}

impl AccessControl {
    pub fn new(mode: AccessMode) -> AccessControl {
        let rate = Mutex::new(RateLimit::new(Instant::now()));
        AccessControl { mode, sessions: Mutex::default(), metrics: ConsoleMetrics::default(), rate }
    }

    /// Returns the name of the cookie, if clients have sessions.
    pub fn cookie_name(&self) -> Option<String> {
        match self.mode {
            AccessMode::Session { port } => Some(format!("tortie_console_{port}")),
            AccessMode::Connection { .. } => None,
        }
    }

    /// Returns whether the request belongs to a client that may read the API.
    pub fn is_signed_in(&self, headers: &HeaderMap) -> bool {
        let Some(name) = self.cookie_name() else { return true };
        let Some(secret) = find_cookie(headers, &name) else { return false };
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.is_open(secret, Instant::now())
    }

    /// Checks the origin, the session and the rate of a request. The page itself and signing in need no session. Refused
    /// requests do not count for the rate: otherwise a page of another site could use it up.
    fn check_request(&self, request: &Request) -> Result<(), ApiError> {
        self.check_origin(request.method(), request.headers())?;
        let path = request.uri().path();
        let is_open = !path.starts_with("/api/") || path == "/api/session";
        if !is_open && !self.is_signed_in(request.headers()) {
            return Err(ApiError::NotSignedIn);
        }
        let admitted = self.rate.lock().unwrap_or_else(PoisonError::into_inner).admit(Instant::now());
        admitted.map_err(|wait| ApiError::TooManyRequests { wait })
    }

    /// Rejects requests that another site may have caused. The address in `Host` is checked against DNS rebinding: a name
    /// of the attacker that resolves to a loopback address.
    fn check_origin(&self, method: &Method, headers: &HeaderMap) -> Result<(), ApiError> {
        let host = text(headers, header::HOST).ok_or(ApiError::Host { host: String::new() })?;
        let tls = self.mode == AccessMode::Connection { tls: true };
        // With TLS the browser has verified the name against the certificate.
        if !tls && !self.is_own_host(host) {
            return Err(ApiError::Host { host: host.to_owned() });
        }
        let scheme = if tls { "https" } else { "http" };
        if let Some(origin) = text(headers, header::ORIGIN)
            && origin != format!("{scheme}://{host}")
        {
            return Err(ApiError::Origin { origin: origin.to_owned() });
        }
        let site = headers.get("sec-fetch-site").and_then(|value| value.to_str().ok());
        let is_page = headers.get("sec-fetch-mode").is_some_and(|mode| mode == "navigate");
        let is_read = [Method::GET, Method::HEAD].contains(method);
        if matches!(site, Some("cross-site" | "same-site")) && !(is_page && is_read) {
            return Err(ApiError::Origin { origin: "another site (sec-fetch-site)".to_owned() });
        }
        if !is_read && !headers.contains_key(REQUEST_HEADER) {
            return Err(ApiError::NoRequestHeader);
        }
        Ok(())
    }

    fn is_own_host(&self, host: &str) -> bool {
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !port.ends_with(']') => (name, port.parse().ok()),
            _ => (host, Some(80)),
        };
        let is_own_port = match self.mode {
            AccessMode::Session { port: own } => port == Some(own),
            // A forwarded socket has any port.
            AccessMode::Connection { .. } => port.is_some(),
        };
        let address = name.trim_start_matches('[').trim_end_matches(']').parse();
        is_own_port && (name == "localhost" || address.is_ok_and(crate::listen::is_loopback))
    }
}

/// Checks a request, serves it within a time limit and adds the security headers.
pub async fn guard(State(access): State<Arc<AccessControl>>, request: Request, next: Next) -> Response {
    let checked = access.check_request(&request);
    let mut response = match checked {
        Ok(()) => match tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await {
            Ok(response) => response,
            Err(_) => ApiError::Timeout.into_response(),
        },
        Err(error) => {
            match error {
                ApiError::TooManyRequests { .. } => access.metrics.limited_requests.inc(),
                _ => access.metrics.refused_requests.inc(),
            };
            error.into_response()
        }
    };
    add_security_headers(&mut response);
    response
}

fn add_security_headers(response: &mut Response<Body>) {
    let headers = response.headers_mut();
    for (name, value) in SECURITY_HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn find_cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
    lines
        .flat_map(|line| line.split(';'))
        .find_map(|pair| pair.trim().split_once('=').filter(|(key, _)| *key == name))
        .map(|(_, value)| value)
}

#[cfg(test)]
mod tests;
