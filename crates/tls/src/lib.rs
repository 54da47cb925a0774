#![doc = include_str!("../README.md")]

mod chain;
mod files;
mod names;
mod pem;
mod reload;
mod self_issued;
mod validity;

pub use files::{TlsError, TlsFiles};
pub use names::{ExpectedPeerNames, PeerNameError, common_name, organisations};
pub use pem::{ClientCertificateMode, PemError, TlsPem, client_verifier};
pub use reload::TlsReloader;
pub use self_issued::{
    CertificateIssueError, CertificateLifetimes, ClientCertificate, SelfIssuedCertificates,
};
