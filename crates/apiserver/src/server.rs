//! The HTTPS server: TLS with a certificate that is reloaded on change, HTTP/1 and HTTP/2, and the connection limits
//! of `tortie_http`, in total and per source.

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use http_body::{Frame, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tortie_http::{ConnectionActivity, ConnectionAdmission, ConnectionLimits, ConnectionTable, RequestGuard};
use tortie_tls::{PemError, TlsError, TlsFiles, TlsPem, TlsReloader};

/// Maximum number of connections. The front proxy uses few, each with many requests.
const CONNECTION_LIMITS: ConnectionLimits = ConnectionLimits { total: 2_048, per_source: 256 };
/// Maximum number of concurrent requests per connection, as in kube-apiserver. The front proxy opens another
/// connection for more.
const MAX_REQUESTS_PER_CONNECTION: u32 = 100;
/// Timeout of the TLS handshake and of reading a request head.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_HEADER_BYTES: usize = 64 << 10;
/// A connection without traffic for this long gets an HTTP/2 ping, and is closed without a response.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// A connection without requests is closed after this time, even if its client responds to pings. With HTTP/1 it is
/// closed sooner, when the head of the next request times out.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Delay after a failed accept: the process may be out of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Time to finish open requests when the server stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);

/// Source of the server's certificate.
pub enum CertificateSource {
    /// From files, reloaded when they change.
    Files(TlsReloader<Arc<CertificatePair>>),
    /// Issued and renewed by the server; `None` until it exists.
    Renewed(watch::Receiver<Option<Arc<CertificatePair>>>),
}

#[derive(Debug, PartialEq, Eq)]
pub struct CertificatePair {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl CertificateSource {
    pub fn from_files(files: TlsFiles) -> Result<CertificateSource, TlsError> {
        TlsReloader::new(files, read_pair).map(CertificateSource::Files)
    }

    fn pair(&self) -> Option<Arc<CertificatePair>> {
        match self {
            CertificateSource::Files(files) => Some(files.get()),
            CertificateSource::Renewed(current) => current.borrow().clone(),
        }
    }
}

impl CertificatePair {
    /// Generates a self-signed certificate, which clients cannot verify.
    pub fn generate(names: Vec<String>) -> Result<CertificatePair, rcgen::Error> {
        let generated = rcgen::generate_simple_self_signed(names)?;
        let key = PrivatePkcs8KeyDer::from(generated.signing_key.serialize_der()).into();
        Ok(CertificatePair { chain: vec![generated.cert.der().clone()], key })
    }

    pub fn from_pem(certificate: &str, key: &str) -> Result<CertificatePair, PemError> {
        let pem = TlsPem { certificate: certificate.into(), key: key.into(), ca: None };
        let (chain, key) = pem.identity()?;
        Ok(CertificatePair { chain, key })
    }
}

fn read_pair(files: &TlsFiles) -> Result<Arc<CertificatePair>, TlsError> {
    // Checks that certificate and key match, as for every other server.
    files.server()?;
    let (chain, key) = files.identity()?;
    Ok(Arc::new(CertificatePair { chain, key }))
}

/// Certificate chain of a client.
pub type CertificateChain = Arc<Vec<CertificateDer<'static>>>;

/// The client of a connection.
#[derive(Clone, Debug)]
pub struct ConnectionPeer {
    pub source: IpAddr,
    pub chain: CertificateChain,
}

/// Handles the requests of the connections.
pub trait RequestHandler: Send + Sync + 'static {
    fn answer(
        &self,
        request: http::Request<Body>,
        peer: &ConnectionPeer,
    ) -> impl Future<Output = Response<Body>> + Send;

    /// Counts a connection that was closed because of a limit: a new `connection`, or an `idle_connection` to make
    /// room.
    fn count_closed(&self, connection: &'static str);
}

pub struct HttpsServer<A> {
    pub identity: CertificateSource,
    /// Verifier of client certificates.
    pub clients: Arc<dyn ClientCertVerifier>,
    pub handler: Arc<A>,
    /// Becomes true when the server stops.
    pub stopping: watch::Receiver<bool>,
}

impl<A: RequestHandler> HttpsServer<A> {
    fn build_config(&self) -> io::Result<ServerConfig> {
        let pair = self.identity.pair().ok_or_else(|| io::Error::other("there is no certificate yet"))?;
        let builder = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?;
        let mut config = builder
            .with_client_cert_verifier(self.clients.clone())
            .with_single_cert(pair.chain.clone(), pair.key.clone_key())
            .map_err(io::Error::other)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }

    /// Serves until the server is stopped, then finishes open requests.
    pub async fn serve(self, listener: TcpListener) {
        let server = Arc::new(self);
        let mut table = ConnectionTable::new(CONNECTION_LIMITS);
        let mut stopping = server.stopping.clone();
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = stopping.wait_for(|stopping| *stopping) => break,
            };
            while connections.try_join_next().is_some() {}
            let (stream, source) = match accepted {
                Ok((stream, from)) => (stream, from.ip().to_canonical()),
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                    continue;
                }
            };
            match table.make_room(source) {
                ConnectionAdmission::Free => {}
                ConnectionAdmission::Displaced => server.handler.count_closed("idle_connection"),
                ConnectionAdmission::Refused => {
                    server.handler.count_closed("connection");
                    continue;
                }
            }
            let activity = ConnectionActivity::default();
            let connection = server.clone().serve_connection(stream, source, activity.clone());
            table.insert(source, activity, connections.spawn(connection));
        }
        let finished = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(SHUTDOWN_TIMEOUT, finished).await.is_err() {
            tracing::warn!("aborting requests that did not finish in time during shutdown");
        }
    }

    async fn serve_connection(
        self: Arc<Self>,
        stream: TcpStream,
        source: IpAddr,
        activity: ConnectionActivity,
    ) {
        if let Err(error) = self.serve_requests(stream, source, activity).await {
            tracing::debug!(%error, "a connection has ended");
        }
    }

    async fn serve_requests(
        &self,
        stream: TcpStream,
        source: IpAddr,
        activity: ConnectionActivity,
    ) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let acceptor = TlsAcceptor::from(Arc::new(self.build_config()?));
        let stream = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await??;
        let (_, session) = stream.get_ref();
        let is_http2 = session.alpn_protocol() == Some(b"h2".as_slice());
        let certificates = session.peer_certificates().unwrap_or_default();
        let chain: CertificateChain =
            Arc::new(certificates.iter().map(|certificate| certificate.clone().into_owned()).collect());
        let handler = self.handler.clone();
        let peer = ConnectionPeer { source, chain };
        let requests = activity.clone();
        let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
            let handler = handler.clone();
            let peer = peer.clone();
            let guard = requests.begin_request();
            async move {
                let response = handler.answer(request.map(Body::new), &peer).await;
                Ok::<_, Infallible>(response.map(|body| TrackedBody { body, _guard: guard }))
            }
        });
        let http = auto::Builder::new(TokioExecutor::new());
        // The client has negotiated the version: detecting it from the first bytes would have no timeout.
        let mut http = if is_http2 { http.http2_only() } else { http.http1_only() };
        http.http1()
            .timer(TokioTimer::new())
            .header_read_timeout(HANDSHAKE_TIMEOUT)
            .max_buf_size(MAX_HEADER_BYTES);
        http.http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_REQUESTS_PER_CONNECTION)
            .max_header_list_size(MAX_HEADER_BYTES as u32)
            .keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(HANDSHAKE_TIMEOUT);
        let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
        let mut stopping = self.stopping.clone();
        let limit = tokio::select! {
            ended = connection.as_mut() => return ended.map_err(io::Error::other),
            _ = stopping.wait_for(|stopping| *stopping) => SHUTDOWN_TIMEOUT,
            () = activity.idle_for(IDLE_TIMEOUT) => HANDSHAKE_TIMEOUT,
        };
        // Accept no more requests on a connection that is idle or whose server stops.
        connection.as_mut().graceful_shutdown();
        tokio::time::timeout(limit, connection).await?.map_err(io::Error::other)
    }
}

/// Response body that keeps the request counted as open until it ends; a watch lasts as long as its body.
struct TrackedBody {
    body: Body,
    _guard: RequestGuard,
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Builds a response of plain text.
pub fn build_text_response(code: StatusCode, text: impl Into<Body>) -> Response<Body> {
    build_response(code, "text/plain; charset=utf-8", text.into())
}

/// Builds the response of the metrics endpoint.
pub fn build_metrics_response(page: String) -> Response<Body> {
    build_response(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", page.into())
}

pub fn build_response(code: StatusCode, form: &str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    if let Ok(form) = HeaderValue::from_str(form) {
        response.headers_mut().insert(CONTENT_TYPE, form);
    }
    response
}
