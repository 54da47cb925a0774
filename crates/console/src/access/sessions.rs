//! Sessions of browsers: a link with a token that is valid once, then a cookie. Only digests of the secrets are kept.

use data_encoding::BASE64URL_NOPAD;
use sha2::{Digest, Sha256};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Maximum number of sessions; a new one ends the oldest.
pub const MAX_SESSIONS: usize = 32;
/// Time after which a session ends.
pub const SESSION_LIFETIME: Duration = Duration::from_secs(12 * 3600);
const SECRET_BYTES: usize = 32;

type SecretDigest = [u8; 32];

/// The open sessions and the token of the next one.
#[derive(Debug, Default)]
pub struct SessionTable {
    token: Option<SecretDigest>,
    /// The oldest first.
    sessions: VecDeque<(SecretDigest, Instant)>,
}

impl SessionTable {
    /// Returns a new token for a link. An earlier one is no longer valid.
    pub fn issue_token(&mut self) -> String {
        let token = generate_secret();
        self.token = Some(digest(&token));
        token
    }

    /// Exchanges the token of the link for the secret of a new session. The token is not valid again.
    pub fn sign_in(&mut self, token: &str, now: Instant) -> Option<String> {
        // Comparing digests keeps the duration of the comparison independent of the token.
        self.token.take_if(|expected| *expected == digest(token))?;
        let secret = generate_secret();
        self.remove_expired(now);
        if self.sessions.len() >= MAX_SESSIONS {
            self.sessions.pop_front();
        }
        self.sessions.push_back((digest(&secret), now));
        Some(secret)
    }

    pub fn is_open(&mut self, secret: &str, now: Instant) -> bool {
        self.remove_expired(now);
        let wanted = digest(secret);
        self.sessions.iter().any(|(known, _)| *known == wanted)
    }

    fn remove_expired(&mut self, now: Instant) {
        self.sessions.retain(|(_, opened)| now.saturating_duration_since(*opened) < SESSION_LIFETIME);
    }
}

fn generate_secret() -> String {
    BASE64URL_NOPAD.encode(&rand::random::<[u8; SECRET_BYTES]>())
}

fn digest(secret: &str) -> SecretDigest {
    Sha256::digest(secret.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_opens_one_session() {
        let (mut table, now) = (SessionTable::default(), Instant::now());
        assert_eq!(table.sign_in("", now), None, "no link was printed");
        let token = table.issue_token();
        assert_eq!(table.sign_in("forged", now), None);
        let secret = table.sign_in(&token, now).unwrap();
        assert_eq!(table.sign_in(&token, now), None, "it was used");
        assert!(table.is_open(&secret, now));
        assert!(!table.is_open(&token, now) && !table.is_open("", now));
        let replaced = table.issue_token();
        table.issue_token();
        assert_eq!(table.sign_in(&replaced, now), None, "a newer link replaces it");
    }

    #[test]
    fn sessions_end_and_are_bounded() {
        let (mut table, now) = (SessionTable::default(), Instant::now());
        let mut secrets = Vec::new();
        for _ in 0..=MAX_SESSIONS {
            let token = table.issue_token();
            secrets.push(table.sign_in(&token, now).unwrap());
        }
        assert_eq!(table.sessions.len(), MAX_SESSIONS);
        assert!(!table.is_open(&secrets[0], now), "the oldest makes room");
        assert!(table.is_open(&secrets[1], now));
        assert!(!table.is_open(&secrets[1], now + SESSION_LIFETIME));
        assert_eq!(table.sessions.len(), 0);
    }
}
