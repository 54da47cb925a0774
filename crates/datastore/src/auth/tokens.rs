//! Tokens that a client presents after password authentication. They are held in memory and expire when they are not
//! used.

use crate::rejection::RequestRejection;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The default of etcd.
const TOKEN_LIFETIME: Duration = Duration::from_secs(300);
const MAX_TOKENS: usize = 10_000;

#[derive(Default)]
pub struct AuthTokens {
    users: Mutex<HashMap<String, (String, Instant)>>,
}

impl AuthTokens {
    pub fn issue(&self, user: &str, now: Instant) -> Result<String, RequestRejection> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if users.len() >= MAX_TOKENS {
            users.retain(|_, (_, end)| *end > now);
        }
        if users.len() >= MAX_TOKENS {
            return Err(RequestRejection::TOO_MANY_REQUESTS);
        }
        let token = format!("{:032x}", rand::random::<u128>());
        users.insert(token.clone(), (user.to_owned(), now + TOKEN_LIFETIME));
        Ok(token)
    }

    /// Returns the user of a token and extends its lifetime.
    pub fn user(&self, token: &str, now: Instant) -> Option<String> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        let (user, end) = users.get_mut(token).filter(|(_, end)| *end > now)?;
        *end = now + TOKEN_LIFETIME;
        Some(user.clone())
    }

    /// Revokes all tokens of a user whose password changed or who was deleted.
    pub fn revoke(&self, user: &str) {
        self.users.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, (of, _)| of != user);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_live_while_used_and_are_bounded() {
        let (tokens, start) = (AuthTokens::default(), Instant::now());
        let token = tokens.issue("cat", start).unwrap();
        let later = start + TOKEN_LIFETIME - Duration::from_secs(1);
        assert_eq!(tokens.user(&token, later).as_deref(), Some("cat"));
        assert_eq!(tokens.user(&token, later + Duration::from_secs(100)).as_deref(), Some("cat"));
        assert_eq!(tokens.user(&token, later + 3 * TOKEN_LIFETIME), None);
        assert_eq!(tokens.user("guess", start), None);
        for _ in 1..MAX_TOKENS {
            tokens.issue("dog", start).unwrap();
        }
        assert_eq!(tokens.issue("dog", start), Err(RequestRejection::TOO_MANY_REQUESTS));
        tokens.revoke("dog");
        assert!(tokens.issue("dog", start).is_ok());
    }
}
