//! TLS of daemons: certificates from files that are read again when they change, so that they can be renewed without a
//! restart; certificates that a server makes for itself and renews; and the names in the certificates of others.

mod chain;
mod files;
mod names;
mod own;
mod pem;
mod reload;
mod validity;

pub use files::{TlsError, TlsFiles};
pub use names::{Expected, common_name, organisations};
pub use own::{ClientCertificate, Lifetimes, OwnCertificates};
pub use pem::{PemError, TlsPem};
pub use reload::Reloading;
