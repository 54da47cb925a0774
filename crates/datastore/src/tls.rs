//! TLS for the TCP listener.

use std::sync::Arc;
use tokio_rustls::TlsAcceptor;
use tortie_tls::{Reloading, TlsError, TlsFiles};

pub struct Tls(Reloading<TlsAcceptor>);

impl Tls {
    pub fn new(files: TlsFiles) -> Result<Tls, TlsError> {
        Reloading::new(files, acceptor).map(Tls)
    }

    /// Returns an acceptor for a new connection, based on the current files.
    pub fn acceptor(&self) -> TlsAcceptor {
        self.0.get()
    }
}

fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, TlsError> {
    let mut config = files.server()?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
