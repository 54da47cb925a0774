//! Signing in with the link, and how the client is known.

use super::{ApiResult, SharedState};
use crate::access::{AccessMode, SESSION_LIFETIME};
use crate::error::{ApiError, render_json};
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::Deserialize;
use serde_json::json;
use std::sync::PoisonError;
use std::time::Instant;

#[derive(Deserialize)]
struct SignInRequest {
    token: String,
}

pub async fn show(State(state): SharedState, headers: HeaderMap) -> ApiResult {
    let access = match state.access.mode {
        AccessMode::Session { .. } => "link",
        AccessMode::Connection { tls: false } => "socket",
        AccessMode::Connection { tls: true } => "certificate",
    };
    let body = json!({
        "access": access,
        "signedIn": state.access.is_signed_in(&headers),
        "version": env!("CARGO_PKG_VERSION"),
        "collector": state.collector.as_ref().map(|collector| &collector.server),
    });
    Ok(render_json(StatusCode::OK, &body))
}

/// Exchanges the token of the link for a cookie, and prints the next link.
pub async fn sign_in(State(state): SharedState, body: Bytes) -> ApiResult {
    let name = state.access.cookie_name().ok_or(ApiError::NotFound)?;
    let request: SignInRequest = serde_json::from_slice(&body)
        .map_err(|error| ApiError::Parameter { field: "body", reason: error.to_string() })?;
    let secret = {
        let mut sessions = state.access.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.sign_in(&request.token, Instant::now()).ok_or(ApiError::InvalidToken)?
    };
    if let Some(printer) = state.announce {
        printer.print_link(&state.access);
    }
    let lifetime = SESSION_LIFETIME.as_secs();
    let cookie = format!("{name}={secret}; Path=/; HttpOnly; SameSite=Strict; Max-Age={lifetime}");
    let mut response = render_json(StatusCode::OK, &json!({ "signedIn": true }));
    let cookie = HeaderValue::try_from(cookie).map_err(|_| ApiError::Internal)?;
    response.headers_mut().insert(header::SET_COOKIE, cookie);
    Ok(response)
}
