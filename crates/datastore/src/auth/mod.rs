//! Users and roles with the semantics of etcd.

mod password;
mod permission;
mod state;
mod tokens;

pub use password::{NO_PASSWORD_HASH, hash_password, verify_password};
pub use state::{AuthChange, AuthState, KeyAccess};
pub use tokens::AuthTokens;
