//! Runs the CSI driver: its own socket, and the socket by which kubelet discovers it.

use crate::error::CsiError;
use crate::flexvolume_program::install_program;
use crate::listener::accept_connections;
use crate::proto::csi::identity_server::IdentityServer;
use crate::proto::csi::node_server::NodeServer;
use crate::proto::pluginregistration::registration_server::RegistrationServer;
use crate::publisher::VolumePublisher;
use crate::service::{DriverService, RegistrationService};
use crate::volume::DRIVER_NAME;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;
use tokio::sync::watch;
use tonic::service::Routes;
use tonic::transport::Server;
use tortie_http::UnixSocket;

/// Directory of kubelet, unless its `--root-dir` is another.
pub const DEFAULT_KUBELET_DIR: &str = "/var/lib/kubelet";
/// Only root may connect.
const SOCKET_MODE: u32 = 0o600;
const MAX_NODE_NAME_BYTES: usize = 192;
const MAX_REQUEST_BYTES: usize = 64 << 10;
const MAX_STREAMS_PER_CONNECTION: u32 = 16;
const MAX_HEADER_BYTES: u32 = 8 << 10;
/// Time limit of a request; kubelet gives up after two minutes.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(90);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Time for open requests after a signal.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct CsiOptions {
    /// Name of the node in Kubernetes.
    pub node_name: String,
    /// Directory of kubelet, at the same path in the driver's container and on the host.
    pub kubelet_dir: PathBuf,
    /// `policySyncPathPrefix` of the FelixConfiguration.
    pub prefix: PathBuf,
    /// kubelet's directory of FlexVolume drivers, if the program is to be installed there too.
    pub flexvolume_dir: Option<PathBuf>,
    /// Version that the driver reports.
    pub version: String,
}

impl CsiOptions {
    fn check(&self) -> Result<(), CsiError> {
        let refuse = |option, value: String, expected| Err(CsiError::Option { option, value, expected });
        if self.node_name.is_empty() || self.node_name.len() > MAX_NODE_NAME_BYTES {
            return refuse("node-name", self.node_name.clone(), "the name of a node, 1 to 192 bytes");
        }
        let paths = [("kubelet-dir", &self.kubelet_dir), ("policy-sync-prefix", &self.prefix)];
        let flexvolume_dir = self.flexvolume_dir.iter().map(|path| ("flexvolume-dir", path));
        for (option, path) in paths.into_iter().chain(flexvolume_dir) {
            let is_plain = path.components().skip(1).all(|part| matches!(part, Component::Normal(_)));
            if !path.is_absolute() || !is_plain {
                return refuse(option, path.display().to_string(), "an absolute path without '..'");
            }
        }
        Ok(())
    }

    fn driver_socket(&self) -> PathBuf {
        self.kubelet_dir.join("plugins").join(DRIVER_NAME).join("csi.sock")
    }

    fn registration_socket(&self) -> PathBuf {
        self.kubelet_dir.join("plugins_registry").join(format!("{DRIVER_NAME}-reg.sock"))
    }
}

/// Serves kubelet until SIGTERM or SIGINT, or until kubelet refuses the driver.
pub async fn run(options: CsiOptions) -> Result<(), CsiError> {
    options.check()?;
    if let Some(directory) = &options.flexvolume_dir {
        let program = install_program(directory)?;
        tracing::info!(program = %program.display(), "installed the FlexVolume driver");
    }
    let shutdown = tortie_http::shutdown_signal().map_err(CsiError::Signal)?;
    let publisher = VolumePublisher::new(options.prefix.clone());
    remove_orphans(&publisher, &options.kubelet_dir).await;
    let driver = bind(&options.driver_socket())?;
    let endpoint = options.driver_socket().display().to_string();
    // kubelet connects to the driver as soon as it sees this socket.
    let registration = bind(&options.registration_socket())?;
    tracing::info!(socket = endpoint, "serving the CSI driver {DRIVER_NAME}");
    let service = DriverService {
        publisher,
        node_name: options.node_name,
        kubelet_dir: options.kubelet_dir,
        version: options.version,
    };
    let identity = IdentityServer::new(service.clone()).max_decoding_message_size(MAX_REQUEST_BYTES);
    let node = NodeServer::new(service).max_decoding_message_size(MAX_REQUEST_BYTES);
    let refused = watch::Sender::new(None);
    let mut refusal = refused.subscribe();
    let registered = RegistrationServer::new(RegistrationService { endpoint, refused })
        .max_decoding_message_size(MAX_REQUEST_BYTES);
    let stop = watch::Sender::new(false);
    let serving = async {
        tokio::try_join!(
            serve(driver, Routes::new(identity).add_service(node), stop.subscribe()),
            serve(registration, Routes::new(registered), stop.subscribe()),
        )
    };
    let mut serving = std::pin::pin!(serving);
    let result = tokio::select! {
        () = shutdown => Ok(()),
        reason = refusal.wait_for(Option::is_some) => {
            let reason = reason.ok().and_then(|reason| reason.clone()).unwrap_or_default();
            Err(CsiError::Registration { reason })
        }
        result = &mut serving => return Ok(result.map(|_| ())?),
    };
    stop.send_replace(true);
    // Connections that are still open after this time are closed when the runtime ends.
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, serving).await;
    result
}

async fn serve(
    socket: UnixSocket,
    routes: Routes,
    mut stop: watch::Receiver<bool>,
) -> Result<(), tonic::transport::Error> {
    Server::builder()
        .timeout(REQUEST_TIMEOUT)
        .max_concurrent_streams(MAX_STREAMS_PER_CONNECTION)
        .http2_max_header_list_size(MAX_HEADER_BYTES)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .add_routes(routes)
        .serve_with_incoming_shutdown(accept_connections(socket), async move {
            // An error means that the driver is gone, which stops it too.
            let _ = stop.wait_for(|stop| *stop).await;
        })
        .await
}

fn bind(path: &Path) -> Result<UnixSocket, CsiError> {
    let failed = |source| CsiError::Listen { path: path.to_owned(), source };
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(failed)?;
    }
    UnixSocket::bind(path, SOCKET_MODE).map_err(failed)
}

async fn remove_orphans(publisher: &VolumePublisher, kubelet_dir: &Path) {
    let (publisher, kubelet_dir) = (publisher.clone(), kubelet_dir.to_owned());
    match tokio::task::spawn_blocking(move || publisher.remove_orphans(&kubelet_dir)).await {
        Ok(Ok(0)) | Err(_) => {}
        Ok(Ok(count)) => tracing::info!(count, "removed credentials of pods that are gone"),
        Ok(Err(error)) => tracing::warn!(%error, "cannot remove credentials of pods that are gone"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn invalid_options_are_named() {
        let options = CsiOptions {
            node_name: "node1".into(),
            kubelet_dir: DEFAULT_KUBELET_DIR.into(),
            prefix: "/run/nodeagent".into(),
            flexvolume_dir: None,
            version: "1".into(),
        };
        options.check().unwrap();
        let named = async |changed: CsiOptions| run(changed).await.unwrap_err().to_string();
        let error = named(CsiOptions { node_name: String::new(), ..options.clone() }).await;
        assert!(error.starts_with("--node-name: "), "{error}");
        let error = named(CsiOptions { kubelet_dir: "kubelet".into(), ..options.clone() }).await;
        assert!(error.starts_with("--kubelet-dir: \"kubelet\""), "{error}");
        let error = named(CsiOptions { flexvolume_dir: Some("exec".into()), ..options.clone() }).await;
        assert!(error.starts_with("--flexvolume-dir: \"exec\""), "{error}");
        let error = named(CsiOptions { prefix: "/run/../etc".into(), ..options }).await;
        assert!(error.starts_with("--policy-sync-prefix: \"/run/../etc\""), "{error}");
    }
}
