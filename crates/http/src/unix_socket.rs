//! Unix sockets of servers: replaces a stale socket, removes the socket at the end, and connections that count against a
//! limit.

use crate::opening::TimedOpening;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream as BlockingUnixStream;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::OwnedSemaphorePermit;
use tonic::transport::server::Connected;

/// A socket that is removed when this is dropped, unless another server has replaced it.
#[derive(Debug)]
pub struct UnixSocket {
    listener: UnixListener,
    path: PathBuf,
    inode: Option<(u64, u64)>,
}

impl UnixSocket {
    /// Binds the socket with these permissions. A socket without a listener, which a crash left behind, is replaced.
    pub fn bind(path: &Path, mode: u32) -> io::Result<UnixSocket> {
        remove_stale_socket(path)?;
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        Ok(UnixSocket { listener, path: path.to_owned(), inode: read_inode(path) })
    }

    pub async fn accept(&self) -> io::Result<UnixStream> {
        Ok(self.listener.accept().await?.0)
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        if self.inode.is_some() && read_inode(&self.path) == self.inode {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn read_inode(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Removes a socket without a listener. Any other file with that name is an error.
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

/// A connection of a client, which counts against the limit of its socket until it is dropped. It fails if the client
/// does not send its first bytes in time.
#[derive(Debug)]
pub struct LimitedConnection {
    stream: TimedOpening<UnixStream>,
    _permit: OwnedSemaphorePermit,
}

impl LimitedConnection {
    pub fn new(stream: UnixStream, permit: OwnedSemaphorePermit) -> LimitedConnection {
        LimitedConnection { stream: TimedOpening::new(stream), _permit: permit }
    }
}

impl Connected for LimitedConnection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for LimitedConnection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, out)
    }
}

impl AsyncWrite for LimitedConnection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn stale_sockets_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let first = UnixSocket::bind(&path, 0o600).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let error = UnixSocket::bind(&path, 0o600).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        fs::remove_file(&path).unwrap();
        let second = UnixSocket::bind(&path, 0o600).unwrap();
        drop(first);
        assert!(path.exists(), "a socket is removed by its own server alone");
        drop(second);
        assert!(!path.exists());
        fs::write(&path, "").unwrap();
        assert!(UnixSocket::bind(&path, 0o600).is_err(), "another file has the name");
    }
}
