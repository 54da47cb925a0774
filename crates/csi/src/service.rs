//! The gRPC services that kubelet calls: identity and node of the CSI driver, and the registration of the plugin.

use crate::error::VolumeError;
use crate::proto::csi::identity_server::Identity;
use crate::proto::csi::node_server::Node;
use crate::proto::csi::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse,
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeUnpublishVolumeRequest,
    NodeUnpublishVolumeResponse, ProbeRequest, ProbeResponse,
};
use crate::proto::pluginregistration::registration_server::Registration;
use crate::proto::pluginregistration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use crate::publisher::{MAX_VOLUMES, VolumePublisher};
use crate::volume::{DRIVER_NAME, PodVolume, check_volume_id, parse_csi_target};
use std::path::PathBuf;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

const PLUGIN_TYPE: &str = "CSIPlugin";
/// Version of the CSI protocol, as kubelet compares it.
const CSI_VERSION: &str = "1.0.0";

/// Identity and node service of the driver.
#[derive(Clone, Debug)]
pub struct DriverService {
    pub publisher: VolumePublisher,
    pub node_name: String,
    pub kubelet_dir: PathBuf,
    pub version: String,
}

#[tonic::async_trait]
impl Identity for DriverService {
    async fn get_plugin_info(
        &self,
        _request: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        let response =
            GetPluginInfoResponse { name: DRIVER_NAME.to_owned(), vendor_version: self.version.clone() };
        Ok(Response::new(response))
    }

    async fn get_plugin_capabilities(
        &self,
        _request: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        Ok(Response::new(GetPluginCapabilitiesResponse {}))
    }

    async fn probe(&self, _request: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(ProbeResponse {}))
    }
}

#[tonic::async_trait]
impl Node for DriverService {
    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let volume = PodVolume::from_request(&request, &self.kubelet_dir)
            .map_err(|error| report_failure("publish", &request.volume_id, error))?;
        let (id, pod) = (volume.id.clone(), format!("{}/{}", volume.pod.namespace, volume.pod.name));
        let publisher = self.publisher.clone();
        run_blocking(move || publisher.publish(&volume))
            .await?
            .map_err(|error| report_failure("publish", &id, error))?;
        tracing::info!(volume = id, pod, "published the volume of a pod");
        Ok(Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let refuse = |error| report_failure("remove", &request.volume_id, error);
        let id = check_volume_id(&request.volume_id).map_err(refuse)?;
        let target = parse_csi_target(&request.target_path, &self.kubelet_dir).map_err(refuse)?;
        let publisher = self.publisher.clone();
        let removed = run_blocking(move || publisher.unpublish(&id, &target)).await?;
        removed.map_err(refuse)?;
        tracing::info!(volume = request.volume_id, "removed the volume of a pod");
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_capabilities(
        &self,
        _request: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        Ok(Response::new(NodeGetCapabilitiesResponse {}))
    }

    async fn node_get_info(
        &self,
        _request: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        let max_volumes_per_node = i64::try_from(MAX_VOLUMES).unwrap_or(i64::MAX);
        Ok(Response::new(NodeGetInfoResponse { node_id: self.node_name.clone(), max_volumes_per_node }))
    }
}

/// Runs system calls that may block. An error means that the driver is ending.
async fn run_blocking<T: Send + 'static>(task: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
    let ran = tokio::task::spawn_blocking(task).await;
    ran.map_err(|_| Status::unavailable("the driver is stopping"))
}

fn report_failure(action: &'static str, volume: &str, error: VolumeError) -> Status {
    tracing::warn!(volume, %error, "cannot {action} a volume; kubelet tries again");
    error.into()
}

/// The service on the socket that kubelet discovers.
#[derive(Debug)]
pub struct RegistrationService {
    /// Path of the driver's own socket.
    pub endpoint: String,
    /// The reason why kubelet refused the driver, once it did.
    pub refused: watch::Sender<Option<String>>,
}

#[tonic::async_trait]
impl Registration for RegistrationService {
    async fn get_info(&self, _request: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: PLUGIN_TYPE.to_owned(),
            name: DRIVER_NAME.to_owned(),
            endpoint: self.endpoint.clone(),
            supported_versions: vec![CSI_VERSION.to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        if status.plugin_registered {
            tracing::info!("kubelet has registered the driver");
        } else {
            self.refused.send_replace(Some(status.error));
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
