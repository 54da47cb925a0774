//! TLS for the TCP listener.

use std::sync::Arc;
use tokio_rustls::TlsAcceptor;
use tortie_tls::{TlsError, TlsFiles, TlsReloader};

pub struct ListenerTls(TlsReloader<TlsAcceptor>);

impl ListenerTls {
    pub fn new(files: TlsFiles) -> Result<ListenerTls, TlsError> {
        TlsReloader::new(files, build_acceptor).map(ListenerTls)
    }

    /// Returns an acceptor for a new connection, based on the current files.
    pub fn acceptor(&self) -> TlsAcceptor {
        self.0.get()
    }
}

fn build_acceptor(files: &TlsFiles) -> Result<TlsAcceptor, TlsError> {
    let mut config = files.server()?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
