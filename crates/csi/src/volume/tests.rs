use super::*;
use crate::proto::csi::volume_capability::{BlockVolume, MountVolume};
use std::collections::BTreeMap;

const UID: &str = "0f3a1c52-8d1e-4f35-9f44-5d3f1d9a7e10";

fn target(uid: &str) -> String {
    format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~csi/policy/mount")
}

fn request() -> NodePublishVolumeRequest {
    let context = [
        ("pod.uid", UID),
        ("pod.name", "web-7d4b9-x2v"),
        ("pod.namespace", "shop"),
        ("serviceAccount.name", "web"),
        ("ephemeral", "true"),
    ];
    let context = context.map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value.to_owned()));
    NodePublishVolumeRequest {
        volume_id: format!("csi-{}", "0a".repeat(32)),
        target_path: target(UID),
        volume_capability: Some(VolumeCapability {
            access_type: Some(AccessType::Mount(MountVolume::default())),
        }),
        volume_context: BTreeMap::from(context),
    }
}

fn parse(request: &NodePublishVolumeRequest) -> Result<PodVolume, VolumeError> {
    PodVolume::from_request(request, Path::new("/var/lib/kubelet"))
}

/// Returns the field that the error names.
fn refused_field(change: impl FnOnce(&mut NodePublishVolumeRequest)) -> String {
    let mut request = request();
    change(&mut request);
    let error = parse(&request).unwrap_err();
    let VolumeError::Field { field, .. } = error else { panic!("{error}") };
    field.to_owned()
}

#[test]
fn requests_of_kubelet_are_accepted() {
    let volume = parse(&request()).unwrap();
    assert_eq!(volume.id, request().volume_id);
    assert_eq!(volume.target.path, Path::new(&target(UID)));
    assert_eq!((volume.target.pod_uid.as_str(), volume.target.volume_name.as_str()), (UID, "policy"));
    let pod = |name: &str| PodIdentity {
        uid: UID.into(),
        name: name.into(),
        namespace: "shop".into(),
        service_account: "web".into(),
    };
    assert_eq!(volume.pod, pod("web-7d4b9-x2v"));
}

#[test]
fn hostile_paths_are_refused() {
    let elsewhere = [
        String::new(),
        "/".to_owned(),
        "/etc".to_owned(),
        target("..").replace("/mount", ""),
        target(".."),
        target("."),
        target(".hidden"),
        target("a\0b"),
        target("a b"),
        target(&"x".repeat(65)),
        target(UID).replace("/var/lib", "/var/lib/.."),
        target(UID).replace("/var/lib/kubelet", "var/lib/kubelet"),
        target(UID).replace("/var/lib/kubelet", "/etc"),
        target(UID).replace("kubernetes.io~csi", "kubernetes.io~empty-dir"),
        target(UID).replace("policy", "../../../etc"),
        target(UID) + "/../../x",
        target(UID) + "/x",
    ];
    for path in elsewhere {
        assert_eq!(refused_field(|request| request.target_path = path.clone()), "target_path", "{path}");
    }
    let dotted = target(UID).replace("/pods", "//./pods/");
    let mut doubled = request();
    doubled.target_path = dotted;
    assert_eq!(parse(&doubled).unwrap().target.path, Path::new(&target(UID)), "the path has one form");
}

#[test]
fn hostile_names_are_refused() {
    for id in ["", ".", "..", "../../etc/x", "a/b", ".hidden", "a\0b", "ü", &"x".repeat(129)] {
        assert_eq!(refused_field(|request| request.volume_id = id.to_owned()), "volume_id", "{id}");
    }
    for (key, value) in [
        ("pod.name", ""),
        ("pod.name", "../web"),
        ("pod.name", "web\n"),
        ("pod.name", "Web"),
        ("pod.namespace", "a/b"),
        ("pod.namespace", ".."),
        ("serviceAccount.name", "\"}"),
        ("pod.uid", "another"),
        ("pod.uid", ""),
        ("ephemeral", "false"),
        ("ephemeral", ""),
    ] {
        let key = format!("csi.storage.k8s.io/{key}");
        let field = refused_field(|request| {
            request.volume_context.insert(key.clone(), value.to_owned());
        });
        assert_eq!(field, format!("volume_context[{key}]"), "{value}");
    }
}

#[test]
fn unsupported_capabilities_are_refused() {
    let with = |access_type| Some(VolumeCapability { access_type });
    let mount = |fs_type: &str, flags: &[&str]| {
        let mount_flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        with(Some(AccessType::Mount(MountVolume { fs_type: fs_type.to_owned(), mount_flags })))
    };
    for (capability, field) in [
        (None, "volume_capability"),
        (with(None), "volume_capability"),
        (with(Some(AccessType::Block(BlockVolume {}))), "volume_capability.access_type"),
        (mount("ext4", &[]), "volume_capability.mount.fs_type"),
        (mount("", &["exec"]), "volume_capability.mount.mount_flags"),
    ] {
        assert_eq!(refused_field(|request| request.volume_capability = capability), field);
    }
}

#[test]
fn flexvolumes_identify_their_pod() {
    let path = format!("/var/lib/kubelet/pods/{UID}/volumes/nodeagent~uds/policy");
    let target = VolumeTarget::parse("path", &path, VolumePlugin::FlexVolume).unwrap();
    let option = |uid: &'static str| {
        move |key: &str| match key {
            "kubernetes.io/pod.uid" => uid.to_owned(),
            _ => "web".to_owned(),
        }
    };
    let volume = PodVolume::from_options(target.clone(), option(UID)).unwrap();
    assert_eq!((volume.id, volume.pod.name), (format!("{UID}.policy"), "web".to_owned()));
    assert!(PodVolume::from_options(target, option("another")).is_err());
}
