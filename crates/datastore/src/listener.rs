//! Accepts connections over TCP, TLS or Unix sockets, up to a limit, and passes them to the server.

use super::connection::DatastoreConnection;
use super::directory::OpenError;
use super::options::{ListenAddress, StoreOptions};
use super::tls::ListenerTls;
use futures::Stream;
use std::fs;
use std::future::pending;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tortie_http::AuthorityRewriter;

/// Maximum number of connections; some file descriptors are reserved for files and other purposes.
const MAX_CONNECTIONS: u64 = 4096;
const RESERVED_DESCRIPTORS: u64 = 64;
/// Timeout of a TLS handshake.
const TLS_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay after a failed accept: initial and maximum.
const MIN_ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);
const MAX_ACCEPT_RETRY_DELAY: Duration = Duration::from_secs(1);

pub enum StoreListener {
    Tcp(TcpListener),
    Tls(TcpListener, Arc<ListenerTls>),
    Unix(UnixListener, SocketFile),
}

/// Removes the socket file when the listener is closed, unless another server has replaced it.
pub struct SocketFile {
    path: PathBuf,
    inode: Option<(u64, u64)>,
}

impl SocketFile {
    fn new(path: &Path) -> SocketFile {
        SocketFile { path: path.to_owned(), inode: read_inode(path) }
    }
}

fn read_inode(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if read_inode(&self.path) == self.inode {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Returns the number of connections that the file descriptor limit of the process allows.
pub fn connection_limit() -> usize {
    let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let room = descriptors.unwrap_or(u64::MAX).saturating_sub(RESERVED_DESCRIPTORS);
    MAX_CONNECTIONS.min(room).max(1) as usize
}

impl StoreListener {
    pub fn bind(
        listen: &ListenAddress,
        options: &StoreOptions,
        tls: Option<&Arc<ListenerTls>>,
    ) -> Result<StoreListener, OpenError> {
        let bound = match listen {
            ListenAddress::Tcp(address) if !address.ip().is_loopback() && !options.allow_plaintext => {
                return Err(OpenError::Plaintext { url: listen.to_string() });
            }
            ListenAddress::Tcp(address) => bind_tcp(address).map(StoreListener::Tcp),
            ListenAddress::Tls(address) => {
                let tls = tls.ok_or_else(|| OpenError::NoCertificate { url: listen.to_string() })?;
                bind_tcp(address).map(|listener| StoreListener::Tls(listener, tls.clone()))
            }
            ListenAddress::Unix(path) => bind_unix(path),
        };
        bound.map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => OpenError::AddressInUse { url: listen.to_string() },
            _ => OpenError::Listen { url: listen.to_string(), source },
        })
    }

    pub fn url(&self) -> ListenAddress {
        match self {
            StoreListener::Tcp(listener) => ListenAddress::Tcp(local_address(listener)),
            StoreListener::Tls(listener, _) => ListenAddress::Tls(local_address(listener)),
            StoreListener::Unix(_, file) => ListenAddress::Unix(file.path.clone()),
        }
    }

    /// Returns a stream of connections. Accepting ends when the stream is dropped.
    pub fn incoming(
        self,
        limit: Arc<Semaphore>,
    ) -> io::Result<impl Stream<Item = Result<AuthorityRewriter<DatastoreConnection>, io::Error>>> {
        let url = self.url();
        let accepting = match self {
            StoreListener::Tcp(listener) => {
                AcceptSource::Tcp(tokio::net::TcpListener::from_std(listener)?, None)
            }
            StoreListener::Tls(listener, tls) => {
                AcceptSource::Tcp(tokio::net::TcpListener::from_std(listener)?, Some(tls))
            }
            StoreListener::Unix(listener, file) => {
                AcceptSource::Unix(tokio::net::UnixListener::from_std(listener)?, file)
            }
        };
        let (sender, receiver) = mpsc::channel(16);
        tokio::spawn(async move {
            tokio::select! {
                () = accept(&accepting, &url, limit, &sender) => {}
                () = sender.closed() => {}
            }
        });
        Ok(tokio_stream::wrappers::ReceiverStream::new(receiver))
    }
}

fn bind_tcp(address: &SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn bind_unix(path: &Path) -> io::Result<StoreListener> {
    remove_stale_socket(path)?;
    let listener = UnixListener::bind(path)?;
    let file = SocketFile::new(path);
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(StoreListener::Unix(listener, file))
}

fn local_address(listener: &TcpListener) -> SocketAddr {
    listener.local_addr().unwrap_or(([127, 0, 0, 1], 0).into())
}

enum AcceptSource {
    Tcp(tokio::net::TcpListener, Option<Arc<ListenerTls>>),
    Unix(
        tokio::net::UnixListener,
        #[expect(dead_code, reason = "removes the socket when dropped")] SocketFile,
    ),
}

enum AcceptedStream {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

impl AcceptSource {
    async fn next(&self) -> io::Result<AcceptedStream> {
        match self {
            AcceptSource::Tcp(listener, _) => {
                let (stream, _) = listener.accept().await?;
                // If the connection is already closed, reading it reports the error.
                let _ = stream.set_nodelay(true);
                Ok(AcceptedStream::Tcp(stream))
            }
            AcceptSource::Unix(listener, _) => Ok(AcceptedStream::Unix(listener.accept().await?.0)),
        }
    }

    fn tls(&self) -> Option<&Arc<ListenerTls>> {
        match self {
            AcceptSource::Tcp(_, tls) => tls.as_ref(),
            AcceptSource::Unix(..) => None,
        }
    }
}

type ConnectionSender = mpsc::Sender<Result<AuthorityRewriter<DatastoreConnection>, io::Error>>;

async fn accept(
    accepting: &AcceptSource,
    url: &ListenAddress,
    limit: Arc<Semaphore>,
    connections: &ConnectionSender,
) {
    let mut pause = None;
    let mut crowded = false;
    loop {
        let stream = match accepting.next().await {
            Ok(stream) => stream,
            // The client closed the connection before it was accepted.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
            Err(error) => {
                if pause.is_none() {
                    tracing::error!("cannot accept connections on {url}: {error}; trying again");
                }
                let next: Duration =
                    pause.map_or(MIN_ACCEPT_RETRY_DELAY, |pause| MAX_ACCEPT_RETRY_DELAY.min(pause * 2));
                pause = Some(next);
                tokio::time::sleep(next).await;
                continue;
            }
        };
        if pause.take().is_some() {
            tracing::info!("connections on {url} are accepted again");
        }
        let Ok(permit) = limit.clone().try_acquire_owned() else {
            if !std::mem::replace(&mut crowded, true) {
                tracing::warn!("too many connections: new connections on {url} are closed until others end");
            }
            continue;
        };
        crowded = false;
        if pass_on(stream, accepting.tls(), permit, connections).await.is_none() {
            return pending().await;
        }
    }
}

/// Passes a connection to the server. Returns `None` if the server does not accept connections any more.
async fn pass_on(
    stream: AcceptedStream,
    tls: Option<&Arc<ListenerTls>>,
    permit: OwnedSemaphorePermit,
    connections: &ConnectionSender,
) -> Option<()> {
    let connection = match (stream, tls) {
        (AcceptedStream::Unix(stream), _) => DatastoreConnection::plain(stream, permit),
        (AcceptedStream::Tcp(stream), None) => DatastoreConnection::plain(stream, permit),
        (AcceptedStream::Tcp(stream), Some(tls)) => {
            let acceptor = tls.acceptor();
            let connections = connections.clone();
            tokio::spawn(async move {
                match tokio::time::timeout(TLS_HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                    Ok(Ok(stream)) => {
                        let connection = DatastoreConnection::tls(stream, permit);
                        let _ = connections.send(Ok(AuthorityRewriter::new(connection))).await;
                    }
                    Ok(Err(error)) => tracing::debug!("a TLS handshake failed: {error}"),
                    Err(_) => tracing::debug!("a TLS handshake took too long"),
                }
            });
            return Some(());
        }
    };
    connections.send(Ok(AuthorityRewriter::new(connection))).await.ok()
}

/// Removes a socket without a listener, which a crash left behind; any other file with that name is an error.
fn remove_stale_socket(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
            Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
            Err(error) => Err(error),
        },
        Ok(_) => Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file that is no socket has this name")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}
