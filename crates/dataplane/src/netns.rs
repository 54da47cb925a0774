//! Handle to a network namespace. Every kernel handle of this crate is opened through one, never in the implicit
//! namespace of the current thread.

use crate::error::{DataplaneError, DataplaneResult};
use crate::failure::KernelObject;
use crate::faults::KernelFaults;
use nix::errno::Errno;
use nix::sys::stat::stat;
use nix::sys::statfs::{FsType, statfs};
use nlink::netlink::{Netfilter, NetlinkSocket, Nflog, Nftables, Protocol, Wireguard, namespace};
use nlink::{Connection, Route};
use std::path::Path;
use std::sync::Arc;

/// Filesystem type of namespace files.
const NSFS_MAGIC: FsType = FsType(0x6e73_6673);

/// A network namespace, kept alive as long as this handle exists. Clones share it.
#[derive(Clone, Debug)]
pub struct Netns {
    inner: Arc<namespace::Netns>,
    faults: KernelFaults,
}

impl Netns {
    /// Opens the namespace of the calling thread.
    pub fn current() -> DataplaneResult<Netns> {
        let inner = namespace::Netns::current().map_err(|error| DataplaneError::Namespace {
            path: "current".into(),
            reason: error.to_string(),
        })?;
        Ok(Netns::new(inner))
    }

    /// Opens the namespace of a file such as `/run/netns/NAME` or `/proc/PID/ns/net`.
    pub fn open(path: impl AsRef<Path>) -> DataplaneResult<Netns> {
        let path = path.as_ref();
        // Check before opening: opening a FIFO would block, and a regular file may be left where a namespace was
        // mounted.
        if !Netns::exists(path) {
            return Err(DataplaneError::NamespaceGone { path: path.into() });
        }
        match namespace::Netns::from_path(path) {
            Ok(inner) => Ok(Netns::new(inner)),
            Err(error) if error.is_not_found() || !path.exists() => {
                Err(DataplaneError::NamespaceGone { path: path.into() })
            }
            Err(error) => Err(DataplaneError::Namespace { path: path.into(), reason: error.to_string() }),
        }
    }

    /// Returns whether a path refers to a namespace. Returns true if that cannot be determined: opening it then reports the
    /// error.
    pub fn exists(path: impl AsRef<Path>) -> bool {
        match statfs(path.as_ref()) {
            Ok(filesystem) => filesystem.filesystem_type() == NSFS_MAGIC,
            Err(error) => error != Errno::ENOENT && error != Errno::ENOTDIR,
        }
    }

    /// Returns whether two paths refer to the same namespace: runtimes use `/run` and `/var/run`, symlinks and bind mounts.
    pub fn is_same(one: impl AsRef<Path>, other: impl AsRef<Path>) -> bool {
        let one = one.as_ref();
        let other = other.as_ref();
        one == other
            || matches!((stat(one), stat(other)), (Ok(one), Ok(other)) if (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
    }

    fn new(inner: namespace::Netns) -> Netns {
        Netns { inner: Arc::new(inner), faults: KernelFaults::default() }
    }

    /// Returns the same namespace with injected faults.
    #[cfg(feature = "fault-injection")]
    pub fn with_faults(self, faults: KernelFaults) -> Netns {
        Netns { faults, ..self }
    }

    /// Returns the same namespace with the injected faults of another one.
    pub(crate) fn failing_like(self, other: &Netns) -> Netns {
        Netns { faults: other.faults.clone(), ..self }
    }

    pub(crate) fn faults(&self) -> &KernelFaults {
        &self.faults
    }

    /// Runs a request that creates or changes an object; an error names the object.
    pub(crate) async fn make(
        &self,
        object: KernelObject,
        request: impl Future<Output = nlink::Result<()>>,
    ) -> DataplaneResult<()> {
        let outcome = match self.faults.check(|| object.clone()) {
            Ok(()) => request.await,
            refused => refused,
        };
        outcome.map_err(|error| DataplaneError::kernel(object, &error))
    }

    /// Runs a closure on a separate thread inside the namespace and waits for it.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> DataplaneResult<T> {
        self.inner.run(work).map_err(|error| self.error(&error))
    }

    /// Runs a closure like [`Netns::run`], without blocking a runtime thread.
    pub async fn within<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> DataplaneResult<T> {
        let netns = self.clone();
        match tokio::task::spawn_blocking(move || netns.run(work)).await {
            Ok(result) => result,
            Err(error) => {
                Err(DataplaneError::Namespace { path: self.inner.label().into(), reason: error.to_string() })
            }
        }
    }

    pub(crate) fn rtnetlink(&self) -> DataplaneResult<Connection<Route>> {
        Connection::new_in(&*self.inner).map_err(|error| self.error(&error))
    }

    pub(crate) fn conntrack(&self) -> DataplaneResult<Connection<Netfilter>> {
        Connection::new_in(&*self.inner).map_err(|error| self.error(&error))
    }

    pub(crate) fn nftables(&self) -> DataplaneResult<Connection<Nftables>> {
        Connection::new_in(&*self.inner).map_err(|error| self.error(&error))
    }

    pub(crate) fn nflog(&self) -> DataplaneResult<Connection<Nflog>> {
        Connection::new_in(&*self.inner).map_err(|error| self.error(&error))
    }

    /// Opens a WireGuard connection; fails if the kernel does not support WireGuard.
    pub(crate) async fn wireguard(&self) -> DataplaneResult<Connection<Wireguard>> {
        Connection::new_in_async(&*self.inner).await.map_err(|error| self.error(&error))
    }

    pub(crate) fn netfilter_socket(&self) -> DataplaneResult<NetlinkSocket> {
        NetlinkSocket::new_in_namespace(Protocol::Netfilter, &*self.inner).map_err(|error| self.error(&error))
    }

    pub(crate) fn route_socket(&self) -> DataplaneResult<NetlinkSocket> {
        NetlinkSocket::new_in_namespace(Protocol::Route, &*self.inner).map_err(|error| self.error(&error))
    }

    pub(crate) fn handle(&self) -> &namespace::Netns {
        &self.inner
    }

    fn error(&self, error: &nlink::Error) -> DataplaneError {
        DataplaneError::Namespace { path: self.inner.label().into(), reason: error.to_string() }
    }
}
