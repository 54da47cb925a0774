//! TLS of daemons: certificates from files that are read again when they change, so that they can be renewed without a
//! restart; certificates that a server makes for itself and renews; and the names in the certificates of others.

mod chain;
mod files;
mod names;
mod own;
mod reload;
mod validity;

pub use files::{TlsError, TlsFiles};
pub use names::{Expected, common_name, organisations};
pub use own::{Lifetimes, OwnCertificates};
pub use reload::Reloading;
