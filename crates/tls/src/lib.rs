#![doc = include_str!("../README.md")]

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
