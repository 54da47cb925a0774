//! TLS for the daemons: certificates from files that are reloaded when they change, so that renewing them needs no
//! restart; certificates that a server issues to itself and renews; and reading the names in peer certificates.

mod chain;
mod files;
mod names;
mod own;
mod pem;
mod reload;
mod validity;

pub use files::{TlsError, TlsFiles};
pub use names::{ExpectedPeerNames, common_name, organisations};
pub use own::{CertificateLifetimes, ClientCertificate, SelfIssuedCertificates};
pub use pem::{PemError, TlsPem};
pub use reload::TlsReloader;
