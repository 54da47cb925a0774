//! Stores passwords as salted hashes that are slow to compute.

use aws_lc_rs::pbkdf2;
use std::num::NonZeroU32;

const PBKDF2_ITERATIONS: NonZeroU32 = NonZeroU32::new(100_000).unwrap();
const SALT_BYTES: usize = 16;
const HASH_BYTES: usize = 32;

/// Hash that no password has. Verifying a password against it takes as long as against any other hash.
pub const NO_PASSWORD_HASH: [u8; SALT_BYTES + HASH_BYTES] = [0; SALT_BYTES + HASH_BYTES];

pub fn hash_password(password: &str) -> Vec<u8> {
    let salt: [u8; SALT_BYTES] = rand::random();
    let mut hash = [0; HASH_BYTES];
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, PBKDF2_ITERATIONS, &salt, password.as_bytes(), &mut hash);
    [&salt[..], &hash].concat()
}

pub fn verify_password(hashed: &[u8], password: &str) -> bool {
    let Some((salt, hash)) = hashed.split_at_checked(SALT_BYTES) else { return false };
    pbkdf2::verify(pbkdf2::PBKDF2_HMAC_SHA256, PBKDF2_ITERATIONS, salt, password.as_bytes(), hash).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_verified_and_hashes_are_salted() {
        let hashed = hash_password("secret");
        assert!(verify_password(&hashed, "secret"));
        assert!(!verify_password(&hashed, "Secret"));
        assert!(!verify_password(&[], "") && !verify_password(&NO_PASSWORD_HASH, ""));
        assert_ne!(hashed, hash_password("secret"));
    }
}
