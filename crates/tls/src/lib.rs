//! TLS of daemons: certificates from files that are read again when they change, so that they can be renewed without a
//! restart, and the names in the certificates of others.

mod chain;
mod files;
mod names;
mod reload;

pub use files::{TlsError, TlsFiles};
pub use names::{Expected, common_name, organisations};
pub use reload::Reloading;
