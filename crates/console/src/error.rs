//! Errors of the API, with their status codes.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use std::time::Duration;
use tortie_ctl::CommandError;

#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    #[error("sign in with the link that `tortie console` printed")]
    NotSignedIn,
    #[error(
        "the link was used already, or is not from this console: use the newest link that `tortie console` printed"
    )]
    InvalidToken,
    #[error("the Host header {host:?} is not an address of this console")]
    Host { host: String },
    #[error("the request comes from another origin: {origin}")]
    Origin { origin: String },
    #[error("the header x-tortie-console is missing")]
    NoRequestHeader,
    #[error("too many requests")]
    TooManyRequests { wait: Duration },
    #[error("too many {what} at the same time, at most {limit}")]
    Busy { what: &'static str, limit: usize },
    #[error("the request took too long")]
    Timeout,
    #[error("{field}: {reason}")]
    Parameter { field: &'static str, reason: String },
    #[error("the question cannot be answered: {0}")]
    Question(CommandError),
    #[error("the datastore cannot be read: {reason}")]
    Store { reason: String },
    #[error("no flow collector is configured")]
    NoCollector,
    #[error("the flow collector cannot be read: {reason}")]
    Collector { reason: String },
    #[error("a task of the console failed")]
    Internal,
    #[error("there is no such page")]
    NotFound,
}

impl ApiError {
    /// Returns the status and a name for programs, which does not change with the text.
    fn code(&self) -> (StatusCode, &'static str) {
        match self {
            ApiError::NotSignedIn => (StatusCode::UNAUTHORIZED, "notSignedIn"),
            ApiError::InvalidToken => (StatusCode::FORBIDDEN, "invalidToken"),
            ApiError::Host { .. } => (StatusCode::MISDIRECTED_REQUEST, "host"),
            ApiError::Origin { .. } => (StatusCode::FORBIDDEN, "origin"),
            ApiError::NoRequestHeader => (StatusCode::FORBIDDEN, "requestHeader"),
            ApiError::TooManyRequests { .. } => (StatusCode::TOO_MANY_REQUESTS, "tooManyRequests"),
            ApiError::Busy { .. } => (StatusCode::SERVICE_UNAVAILABLE, "busy"),
            ApiError::Timeout => (StatusCode::SERVICE_UNAVAILABLE, "timeout"),
            ApiError::Parameter { .. } => (StatusCode::BAD_REQUEST, "parameter"),
            ApiError::Question(_) => (StatusCode::UNPROCESSABLE_ENTITY, "question"),
            ApiError::Store { .. } => (StatusCode::SERVICE_UNAVAILABLE, "store"),
            ApiError::NoCollector => (StatusCode::NOT_FOUND, "noCollector"),
            ApiError::Collector { .. } => (StatusCode::BAD_GATEWAY, "collector"),
            ApiError::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
            ApiError::NotFound => (StatusCode::NOT_FOUND, "notFound"),
        }
    }
}

/// Errors of the datastore keep their meaning; others are about the question.
impl From<CommandError> for ApiError {
    fn from(error: CommandError) -> ApiError {
        match error {
            CommandError::Store(error) | CommandError::NoClient(error) => {
                ApiError::Store { reason: error.to_string() }
            }
            other => ApiError::Question(other),
        }
    }
}

impl From<tortie_store::StoreError> for ApiError {
    fn from(error: tortie_store::StoreError) -> ApiError {
        ApiError::Store { reason: error.to_string() }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, code) = self.code();
        let body = json!({ "error": { "code": code, "message": self.to_string() } });
        let mut response = render_json(status, &body);
        if let ApiError::TooManyRequests { wait } = self {
            let seconds = HeaderValue::from(wait.as_secs().max(1));
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        response
    }
}

/// Renders a JSON response.
pub fn render_json(status: StatusCode, body: &impl serde::Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(bytes) => (status, [(header::CONTENT_TYPE, "application/json")], bytes).into_response(),
        Err(error) => {
            tracing::error!(%error, "cannot serialize a response");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}
