//! The Unix socket of the server: replaces a stale socket, accepts connections up to a limit, and removes the socket at
//! the end.

use super::connection::{OpenConnection, ProxyConnection};
use crate::metrics::L7Metrics;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream as BlockingUnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tortie_http::AuthorityRewriter;

/// Maximum number of accepted connections that the server has not taken over yet.
const MAX_PENDING_CONNECTIONS: usize = 16;
/// Delay after `accept` fails, for example because file descriptors are exhausted.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

pub type IncomingConnection = Result<AuthorityRewriter<ProxyConnection>, io::Error>;

/// A socket that is removed when the listener is dropped, unless another server has replaced it.
#[derive(Debug)]
pub struct ProxyListener {
    listener: UnixListener,
    path: PathBuf,
    inode: Option<(u64, u64)>,
}

impl ProxyListener {
    /// Binds the socket with these permissions.
    pub fn bind(path: &Path, mode: u32) -> io::Result<ProxyListener> {
        remove_stale_socket(path)?;
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        Ok(ProxyListener { listener, path: path.to_owned(), inode: read_inode(path) })
    }

    /// Returns a stream of connections. Accepting ends when the stream is dropped.
    pub fn accept_connections(
        self,
        max_connections: usize,
        metrics: Arc<L7Metrics>,
    ) -> ReceiverStream<IncomingConnection> {
        let (sender, receiver) = mpsc::channel(MAX_PENDING_CONNECTIONS);
        let limit = Arc::new(Semaphore::new(max_connections));
        tokio::spawn(async move {
            tokio::select! {
                () = self.forward(&limit, &metrics, &sender) => {}
                () = sender.closed() => {}
            }
        });
        ReceiverStream::new(receiver)
    }

    async fn forward(
        &self,
        limit: &Arc<Semaphore>,
        metrics: &L7Metrics,
        connections: &mpsc::Sender<IncomingConnection>,
    ) {
        let mut is_full = false;
        loop {
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection; trying again");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                    continue;
                }
            };
            let Ok(permit) = limit.clone().try_acquire_owned() else {
                metrics.refused_connections.inc();
                if !std::mem::replace(&mut is_full, true) {
                    tracing::warn!("too many connections: new ones are closed until others end");
                }
                continue;
            };
            is_full = false;
            let open = OpenConnection::new(metrics.connections.clone(), permit);
            if connections.send(Ok(wrap_stream(stream, open))).await.is_err() {
                return;
            }
        }
    }
}

fn wrap_stream(stream: UnixStream, open: OpenConnection) -> AuthorityRewriter<ProxyConnection> {
    // Envoy and Go clients send authorities that HTTP/2 does not allow, such as the name of a cluster or a path.
    AuthorityRewriter::new(ProxyConnection::new(stream, open))
}

impl Drop for ProxyListener {
    fn drop(&mut self) {
        if self.inode.is_some() && read_inode(&self.path) == self.inode {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn read_inode(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Removes a socket without a listener, which a crash left behind. Any other file with that name is an error.
fn remove_stale_socket(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => match BlockingUnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
            Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
            Err(error) => Err(error),
        },
        Ok(_) => Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file that is no socket has this name")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}
