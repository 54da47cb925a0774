//! Connections: TLS with a certificate that is read again when it changes, HTTP 1 and 2, never more than there is room for.

use axum::body::Body;
use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tortie_tls::{Reloading, TlsFiles};

/// Connections at a time. The proxy has a few, each with many requests.
const MOST_CONNECTIONS: usize = 2_048;
/// Requests at a time on one of them.
const MOST_STREAMS: u32 = 1_000;
/// A handshake, and the head of a request, has to be done within this time.
const PATIENCE: Duration = Duration::from_secs(10);
const HEADERS: usize = 64 << 10;
/// A connection on which nothing is heard for so long is asked for a sign of life, and closed without one.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// After a failure to accept: descriptors may be short.
const PAUSE: Duration = Duration::from_millis(100);
/// What is being answered when the server stops has this long.
const GRACE: Duration = Duration::from_secs(20);

/// The server's own certificate.
pub enum Identity {
    /// From files, read again when they change.
    Files(Reloading<Arc<Pair>>),
    /// Made at the start; nobody can check it.
    Own(Arc<Pair>),
    /// Made by the server and renewed by it; nothing at first.
    Renewed(watch::Receiver<Option<Arc<Pair>>>),
}

#[derive(Debug, PartialEq, Eq)]
pub struct Pair {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    pub fn from_files(files: TlsFiles) -> Result<Identity, tortie_tls::TlsError> {
        Reloading::new(files, read_pair).map(Identity::Files)
    }

    pub fn generate(names: Vec<String>) -> Result<Identity, String> {
        let made = rcgen::generate_simple_self_signed(names).map_err(|error| error.to_string())?;
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(str::to_owned)?;
        Ok(Identity::Own(Arc::new(Pair { chain: vec![made.cert.der().clone()], key })))
    }

    fn pair(&self) -> Option<Arc<Pair>> {
        match self {
            Identity::Files(files) => Some(files.get()),
            Identity::Own(pair) => Some(pair.clone()),
            Identity::Renewed(current) => current.borrow().clone(),
        }
    }
}

impl Pair {
    pub fn from_pem(certificate: &str, key: &str) -> Result<Pair, String> {
        let chain = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect::<Result<Vec<_>, _>>();
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes());
        match (chain, key) {
            (Ok(chain), Ok(key)) => Ok(Pair { chain, key }),
            (Err(error), _) | (_, Err(error)) => Err(format!("a certificate cannot be read: {error}")),
        }
    }
}

fn read_pair(files: &TlsFiles) -> Result<Arc<Pair>, tortie_tls::TlsError> {
    let failed =
        |path: &std::path::Path, reason: String| tortie_tls::TlsError::File { path: path.to_owned(), reason };
    // Whether the two fit is judged here, as for every other server.
    files.server()?;
    let chain = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| failed(&files.certificate, error.to_string()))?;
    let key =
        PrivateKeyDer::from_pem_file(&files.key).map_err(|error| failed(&files.key, error.to_string()))?;
    Ok(Arc::new(Pair { chain, key }))
}

/// The certificates that a client has shown.
pub type Chain = Arc<Vec<CertificateDer<'static>>>;

/// What is behind the connections.
pub trait Answers: Send + Sync + 'static {
    fn answer(
        &self,
        request: http::Request<Body>,
        chain: &Chain,
    ) -> impl Future<Output = Response<Body>> + Send;

    /// A connection was closed at once, since there are too many.
    fn no_room_for_connection(&self);
}

pub struct Server<A> {
    pub identity: Identity,
    /// Whose certificates are taken.
    pub clients: Arc<dyn ClientCertVerifier>,
    pub answers: Arc<A>,
    /// Becomes true when the server stops.
    pub stopping: watch::Receiver<bool>,
}

impl<A: Answers> Server<A> {
    fn config(&self) -> Result<ServerConfig, String> {
        let pair = self.identity.pair().ok_or("there is no certificate yet")?;
        let builder = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let mut config = builder
            .with_client_cert_verifier(self.clients.clone())
            .with_single_cert(pair.chain.clone(), pair.key.clone_key())
            .map_err(|error| error.to_string())?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }

    /// Serves until the server is to stop; then what is being answered is finished.
    pub async fn serve(self, listener: TcpListener) {
        let server = Arc::new(self);
        let room = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        let mut stopping = server.stopping.clone();
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = stopping.wait_for(|stopping| *stopping) => break,
            };
            while connections.try_join_next().is_some() {}
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a connection");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let Ok(room) = room.clone().try_acquire_owned() else {
                server.answers.no_room_for_connection();
                continue;
            };
            let server = server.clone();
            connections.spawn(async move {
                if let Err(error) = server.converse(stream).await {
                    tracing::debug!(%error, "a connection has ended");
                }
                drop(room);
            });
        }
        let finished = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(GRACE, finished).await.is_err() {
            tracing::warn!("requests that take longer than the time to stop are given up");
        }
    }

    async fn converse(&self, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let acceptor = TlsAcceptor::from(Arc::new(self.config().map_err(io::Error::other)?));
        let stream = tokio::time::timeout(PATIENCE, acceptor.accept(stream)).await??;
        let (_, session) = stream.get_ref();
        let speaks_2 = session.alpn_protocol() == Some(b"h2".as_slice());
        let shown = session.peer_certificates().unwrap_or_default();
        let chain: Chain =
            Arc::new(shown.iter().map(|certificate| certificate.clone().into_owned()).collect());
        let answers = self.answers.clone();
        let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
            let (answers, chain) = (answers.clone(), chain.clone());
            async move { Ok::<_, Infallible>(answers.answer(request.map(Body::new), &chain).await) }
        });
        let stopping = self.stopping.clone();
        let stream = TokioIo::new(stream);
        if speaks_2 {
            let mut http = http2::Builder::new(TokioExecutor::new());
            http.timer(TokioTimer::new())
                .max_concurrent_streams(MOST_STREAMS)
                .max_header_list_size(HEADERS as u32)
                .keep_alive_interval(KEEP_ALIVE)
                .keep_alive_timeout(PATIENCE);
            finish(http.serve_connection(stream, service), |http| http.graceful_shutdown(), stopping).await
        } else {
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(PATIENCE).max_buf_size(HEADERS);
            finish(http.serve_connection(stream, service), |http| http.graceful_shutdown(), stopping).await
        }
    }
}

/// Until a connection has ended; when the server stops, nothing new begins on it.
async fn finish<C: Future<Output = hyper::Result<()>>>(
    connection: C,
    close: fn(Pin<&mut C>),
    mut stopping: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return ended.map_err(io::Error::other),
        _ = stopping.wait_for(|stopping| *stopping) => close(connection.as_mut()),
    }
    connection.await.map_err(io::Error::other)
}

pub fn response(code: http::StatusCode, form: &str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    if let Ok(form) = HeaderValue::from_str(form) {
        response.headers_mut().insert(CONTENT_TYPE, form);
    }
    response
}
