//! The CSI driver as kubelet calls it, over its sockets, with real mounts in a mount namespace of the test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tortie_csi::proto::csi::identity_client::IdentityClient;
use tortie_csi::proto::csi::node_client::NodeClient;
use tortie_csi::proto::csi::volume_capability::{AccessType, MountVolume};
use tortie_csi::proto::csi::{
    GetPluginCapabilitiesRequest, GetPluginInfoRequest, NodeGetCapabilitiesRequest, NodeGetInfoRequest,
    NodePublishVolumeRequest, NodeUnpublishVolumeRequest, ProbeRequest, VolumeCapability,
};
use tortie_csi::proto::pluginregistration::registration_client::RegistrationClient;
use tortie_csi::proto::pluginregistration::{InfoRequest, RegistrationStatus};
use tortie_csi::{CsiError, CsiOptions, run_flexvolume};

const START_TIMEOUT: Duration = Duration::from_secs(60);
const UID: &str = "0f3a1c52-8d1e-4f35-9f44-5d3f1d9a7e10";
const VOLUME_ID: &str = "csi-0a0b";

struct RunningDriver {
    dir: PathBuf,
    task: JoinHandle<Result<(), CsiError>>,
}

/// Runs a test on a thread in its own mount namespace, which other threads of its runtime inherit.
fn run_test<F: Future<Output = ()>>(test: impl FnOnce(PathBuf) -> F + Send + 'static) {
    let tested = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test(dir.path().to_owned()));
    });
    if let Err(panic) = tested.join() {
        std::panic::resume_unwind(panic);
    }
}

impl RunningDriver {
    async fn start(dir: &Path) -> RunningDriver {
        let options = CsiOptions {
            node_name: "node1".into(),
            kubelet_dir: dir.join("kubelet"),
            prefix: dir.join("nodeagent"),
            flexvolume_dir: Some(dir.join("exec")),
            version: "0.1.0".into(),
        };
        let driver = RunningDriver { dir: dir.to_owned(), task: tokio::spawn(tortie_csi::run(options)) };
        let waiting = async {
            while UnixStream::connect(driver.registration_socket()).is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(START_TIMEOUT, waiting).await.expect("the driver listens");
        driver
    }

    fn registration_socket(&self) -> PathBuf {
        self.dir.join("kubelet/plugins_registry/csi.tigera.io-reg.sock")
    }

    fn driver_socket(&self) -> PathBuf {
        self.dir.join("kubelet/plugins/csi.tigera.io/csi.sock")
    }

    /// Returns the directory of the volume that kubelet requests.
    fn target(&self) -> PathBuf {
        self.dir.join(format!("kubelet/pods/{UID}/volumes/kubernetes.io~csi/policy/mount"))
    }

    fn publish_request(&self) -> NodePublishVolumeRequest {
        let context = [
            ("pod.uid", UID),
            ("pod.name", "web"),
            ("pod.namespace", "shop"),
            ("serviceAccount.name", "web"),
            ("ephemeral", "true"),
        ];
        let context = context.map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value.to_owned()));
        let access_type = Some(AccessType::Mount(MountVolume::default()));
        NodePublishVolumeRequest {
            volume_id: VOLUME_ID.into(),
            target_path: self.target().display().to_string(),
            volume_capability: Some(VolumeCapability { access_type }),
            volume_context: context.into(),
        }
    }

    fn unpublish_request(&self) -> NodeUnpublishVolumeRequest {
        let target_path = self.target().display().to_string();
        NodeUnpublishVolumeRequest { volume_id: VOLUME_ID.into(), target_path }
    }

    async fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(connect(&self.driver_socket()).await)
    }

    fn credentials(&self) -> PathBuf {
        self.dir.join("nodeagent/creds").join(format!("{VOLUME_ID}.json"))
    }
}

async fn connect(socket: &Path) -> Channel {
    Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap().connect().await.unwrap()
}

#[test]
fn kubelet_discovers_the_driver() {
    run_test(async |dir| {
        let driver = RunningDriver::start(&dir).await;
        let mut registration = RegistrationClient::new(connect(&driver.registration_socket()).await);
        let info = registration.get_info(InfoRequest {}).await.unwrap().into_inner();
        assert_eq!((info.r#type.as_str(), info.name.as_str()), ("CSIPlugin", "csi.tigera.io"));
        assert_eq!(info.supported_versions, ["1.0.0"]);
        assert_eq!(Path::new(&info.endpoint), driver.driver_socket());
        let mut identity = IdentityClient::new(connect(Path::new(&info.endpoint)).await);
        let plugin = identity.get_plugin_info(GetPluginInfoRequest {}).await.unwrap().into_inner();
        assert_eq!((plugin.name.as_str(), plugin.vendor_version.as_str()), ("csi.tigera.io", "0.1.0"));
        identity.get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await.unwrap();
        identity.probe(ProbeRequest {}).await.unwrap();
        let mut node = driver.node().await;
        node.node_get_capabilities(NodeGetCapabilitiesRequest {}).await.unwrap();
        let info = node.node_get_info(NodeGetInfoRequest {}).await.unwrap().into_inner();
        assert_eq!((info.node_id.as_str(), info.max_volumes_per_node), ("node1", 1024));
        let registered = RegistrationStatus { plugin_registered: true, error: String::new() };
        registration.notify_registration_status(registered).await.unwrap();
        assert!(!driver.task.is_finished());
        let refused = RegistrationStatus { plugin_registered: false, error: "another driver".into() };
        registration.notify_registration_status(refused).await.unwrap();
        let error = driver.task.await.unwrap().unwrap_err().to_string();
        assert_eq!(error, "kubelet did not register the driver: another driver");
    });
}

#[test]
fn volumes_are_published_and_removed_repeatedly() {
    run_test(async |dir| {
        let driver = RunningDriver::start(&dir).await;
        fs::create_dir_all(driver.target().parent().unwrap()).unwrap();
        let mut node = driver.node().await;
        for _ in 0..2 {
            node.node_publish_volume(driver.publish_request()).await.unwrap();
            assert!(driver.credentials().exists());
        }
        let socket = dir.join("nodeagent/mount").join(UID).join("socket");
        let _listener = UnixListener::bind(&socket).unwrap();
        // A short path, as in a pod: paths of sockets are limited to 107 bytes.
        let volume = dir.join("volume");
        symlink(driver.target(), &volume).unwrap();
        UnixStream::connect(volume.join("nodeagent/socket")).unwrap();
        for _ in 0..2 {
            node.node_unpublish_volume(driver.unpublish_request()).await.unwrap();
            assert!(!driver.target().exists() && !driver.credentials().exists() && !socket.exists());
        }
    });
}

#[test]
fn flexvolumes_are_mounted_and_unmounted() {
    run_test(async |dir| {
        let config = dir.join("nodeagent.json");
        fs::write(&config, json!({"nodeagent_management_home": dir.join("nodeagent")}).to_string()).unwrap();
        let volume = dir.join(format!("kubelet/pods/{UID}/volumes/nodeagent~uds/policy"));
        fs::create_dir_all(&volume).unwrap();
        let run = |arguments: &[&str]| {
            let mut out = Vec::new();
            run_flexvolume(arguments, &config, &mut out);
            let response: Value = serde_json::from_slice(&out).unwrap();
            assert_eq!(response, json!({"status": "Success"}));
        };
        let options = json!({
            "kubernetes.io/pod.uid": UID,
            "kubernetes.io/pod.name": "web",
            "kubernetes.io/pod.namespace": "shop",
            "kubernetes.io/serviceAccount.name": "web",
            "kubernetes.io/fsType": "",
            "kubernetes.io/readwrite": "rw",
        });
        let path = volume.to_str().unwrap();
        for _ in 0..2 {
            run(&["mount", path, &options.to_string()]);
        }
        let credentials = dir.join(format!("nodeagent/creds/{UID}.policy.json"));
        let written: Value = serde_json::from_slice(&fs::read(&credentials).unwrap()).unwrap();
        let expected = json!({"UID": UID, "Workload": "web", "Namespace": "shop", "ServiceAccount": "web"});
        assert_eq!(written, expected);
        fs::write(dir.join("nodeagent/mount").join(UID).join("seen"), "").unwrap();
        assert!(volume.join("nodeagent/seen").exists());
        fs::remove_file(dir.join("nodeagent/mount").join(UID).join("seen")).unwrap();
        for _ in 0..2 {
            run(&["unmount", path]);
            assert!(!volume.exists() && !credentials.exists());
        }
    });
}

#[test]
fn bad_requests_have_codes_and_fields() {
    run_test(async |dir| {
        let driver = RunningDriver::start(&dir).await;
        let mut node = driver.node().await;
        let named = |status: Status, code: Code, text: &str| {
            assert_eq!(status.code(), code, "{status}");
            assert!(status.message().contains(text), "{status}");
        };
        let escape = NodePublishVolumeRequest { volume_id: "../x".into(), ..driver.publish_request() };
        named(
            node.node_publish_volume(escape).await.unwrap_err(),
            Code::InvalidArgument,
            "volume_id: \"../x\"",
        );
        let target_path = driver.target().display().to_string().replace("policy", "..");
        let escape = NodeUnpublishVolumeRequest { target_path, ..driver.unpublish_request() };
        named(node.node_unpublish_volume(escape).await.unwrap_err(), Code::InvalidArgument, "target_path");
        let elsewhere = NodePublishVolumeRequest {
            target_path: format!("/other/pods/{UID}/volumes/kubernetes.io~csi/policy/mount"),
            ..driver.publish_request()
        };
        named(node.node_publish_volume(elsewhere).await.unwrap_err(), Code::InvalidArgument, "--kubelet-dir");
        // kubelet creates the parent of the volume; without it the request is wrong.
        named(node.node_publish_volume(driver.publish_request()).await.unwrap_err(), Code::Internal, "pods");
        fs::create_dir_all(driver.target().parent().unwrap()).unwrap();
        node.node_publish_volume(driver.publish_request()).await.unwrap();
        let mut other = driver.publish_request();
        other.volume_context.insert("csi.storage.k8s.io/pod.name".into(), "other".into());
        named(node.node_publish_volume(other).await.unwrap_err(), Code::AlreadyExists, "shop/web");
        let long = NodePublishVolumeRequest { volume_id: "x".repeat(1 << 20), ..driver.publish_request() };
        let status = node.node_publish_volume(long).await.unwrap_err();
        assert_eq!(status.code(), Code::OutOfRange, "{status}");
        node.node_unpublish_volume(driver.unpublish_request()).await.unwrap();
    });
}

#[test]
fn drivers_replace_the_sockets_of_crashed_ones() {
    run_test(async |dir| {
        let first = RunningDriver::start(&dir).await;
        let sockets = [first.driver_socket(), first.registration_socket()];
        first.task.abort();
        let _ = first.task.await;
        for socket in &sockets {
            let _ = fs::remove_file(socket);
            // A killed process leaves a socket without a listener.
            drop(UnixListener::bind(socket).unwrap());
        }
        let credentials = dir.join("nodeagent/creds/csi-old.json");
        fs::create_dir_all(credentials.parent().unwrap()).unwrap();
        fs::write(&credentials, "{\"UID\":\"gone\",\"Workload\":\"web\",\"Namespace\":\"shop\"}").unwrap();
        fs::create_dir_all(dir.join("kubelet/pods")).unwrap();
        let second = RunningDriver::start(&dir).await;
        second.node().await.node_get_info(NodeGetInfoRequest {}).await.unwrap();
        assert!(!credentials.exists(), "the pod is gone");
    });
}
