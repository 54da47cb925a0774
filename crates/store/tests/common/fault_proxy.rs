//! A proxy in front of a real API server that can respond in its place.

use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::IntervalStream;

/// Injected fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InjectedFault {
    /// The server responds.
    None,
    /// Every connection is closed.
    Closed,
    /// Respond with this code and body. Watches get an "expired" error, so that clients list again.
    Body(u16, String),
    /// Like `Body` with code 200, but only for paths that contain this text; the server responds to other requests.
    BodyOf(&'static str, String),
    /// Respond with an endless body.
    EndlessBody,
    /// Respond to watches with an endless line; the server responds to other requests.
    EndlessLine,
}

/// Accepts plain HTTP. Connections are closed when the fault changes.
pub struct FaultProxy {
    pub url: String,
    fault: Arc<Mutex<InjectedFault>>,
    connections: Arc<Mutex<JoinSet<()>>>,
    task: JoinHandle<()>,
}

impl FaultProxy {
    /// Starts a proxy for the API server at the URL `server`.
    pub async fn start(server: &str, fault: InjectedFault) -> FaultProxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let target = server.trim_start_matches("https://").to_owned();
        let fault = Arc::new(Mutex::new(fault));
        let connections = Arc::new(Mutex::new(JoinSet::new()));
        let task = tokio::spawn({
            let (fault, connections) = (fault.clone(), connections.clone());
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    let (fault, target) = (fault.lock().unwrap().clone(), target.clone());
                    connections.lock().unwrap().spawn(async move {
                        let _ = answer(client, &fault, &target).await;
                    });
                }
            }
        });
        FaultProxy { url, fault, connections, task }
    }

    pub fn set(&self, fault: InjectedFault) {
        *self.fault.lock().unwrap() = fault;
        self.connections.lock().unwrap().abort_all();
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Handles one request, then closes the connection.
async fn answer(mut client: TcpStream, fault: &InjectedFault, target: &str) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut buffer = [0; 4096];
        match client.read(&mut buffer).await? {
            0 => return Ok(()),
            length => head.extend_from_slice(&buffer[..length]),
        }
    }
    let has = |part: &str| head.windows(part.len()).any(|found| found == part.as_bytes());
    let is_watch = has("watch=1&");
    let (code, body) = match fault {
        InjectedFault::Closed => return Ok(()),
        InjectedFault::BodyOf(part, _) if !has(part) => return relay(client, &head, target).await,
        InjectedFault::Body(..) | InjectedFault::BodyOf(..) if is_watch => {
            let gone = r#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}"#;
            (200, format!("{gone}\n"))
        }
        InjectedFault::Body(code, body) => (*code, body.clone()),
        InjectedFault::BodyOf(_, body) => (200, body.clone()),
        InjectedFault::EndlessBody => return write_endlessly(client).await,
        InjectedFault::EndlessLine if is_watch => return write_endlessly(client).await,
        InjectedFault::EndlessLine | InjectedFault::None => return relay(client, &head, target).await,
    };
    let length = body.len();
    let text = format!("HTTP/1.1 {code} X\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}");
    client.write_all(text.as_bytes()).await?;
    client.shutdown().await
}

async fn write_endlessly(mut client: TcpStream) -> std::io::Result<()> {
    client.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n").await?;
    // Limited pace, to protect a busy machine in case the client never closes the connection.
    let piece = vec![b'a'; 1 << 20];
    let mut ticks = IntervalStream::new(tokio::time::interval(std::time::Duration::from_millis(2)));
    while ticks.next().await.is_some() {
        client.write_all(&piece).await?;
    }
    Ok(())
}

async fn relay(mut client: TcpStream, head: &[u8], target: &str) -> std::io::Result<()> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer(provider)))
        .with_no_client_auth();
    let stream = TcpStream::connect(target).await?;
    let name = ServerName::try_from("localhost").unwrap();
    let mut server = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    let end = head.windows(2).position(|end| end == b"\r\n").unwrap_or_default();
    server.write_all(&head[..end]).await?;
    server.write_all(b"\r\nConnection: close").await?;
    server.write_all(&head[end..]).await?;
    copy_bidirectional(&mut client, &mut server).await.map(drop)
}

#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
