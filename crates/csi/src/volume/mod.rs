//! Checks of what kubelet requests: names and paths that become parts of paths on the host.

#[cfg(test)]
mod tests;

use crate::error::VolumeError;
use crate::proto::csi::volume_capability::AccessType;
use crate::proto::csi::{NodePublishVolumeRequest, VolumeCapability};
use std::path::{Component, Path, PathBuf};

/// Name of the CSI driver, as in pods of Calico's documentation.
pub const DRIVER_NAME: &str = "csi.tigera.io";

/// The limits of the CSI specification for strings, and of Kubernetes for names.
const MAX_VOLUME_ID_BYTES: usize = 128;
const MAX_UID_BYTES: usize = 64;
const MAX_NAME_BYTES: usize = 253;
const MAX_NAMESPACE_BYTES: usize = 63;
const MAX_VOLUME_NAME_BYTES: usize = 63;
/// Keys under which kubelet describes the pod, if the CSIDriver object has `podInfoOnMount`.
const UID_KEY: &str = "volume_context[csi.storage.k8s.io/pod.uid]";
const NAME_KEY: &str = "volume_context[csi.storage.k8s.io/pod.name]";
const NAMESPACE_KEY: &str = "volume_context[csi.storage.k8s.io/pod.namespace]";
const SERVICE_ACCOUNT_KEY: &str = "volume_context[csi.storage.k8s.io/serviceAccount.name]";
const EPHEMERAL_KEY: &str = "volume_context[csi.storage.k8s.io/ephemeral]";

/// A volume to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodVolume {
    pub id: String,
    pub target: VolumeTarget,
    pub pod: PodIdentity,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodIdentity {
    pub uid: String,
    pub name: String,
    pub namespace: String,
    pub service_account: String,
}

/// The directory that kubelet mounts into containers: `<kubelet>/pods/<uid>/volumes/<plugin>/<name>`, for CSI with
/// `/mount` behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeTarget {
    pub path: PathBuf,
    pub kubelet_dir: PathBuf,
    pub pod_uid: String,
    pub volume_name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumePlugin {
    Csi,
    FlexVolume,
}

impl VolumePlugin {
    /// Returns the components of the path of a volume below kubelet's directory; `None` for the pod's UID and for the
    /// name of the volume.
    fn path_pattern(self) -> &'static [Option<&'static str>] {
        match self {
            VolumePlugin::Csi => {
                &[Some("pods"), None, Some("volumes"), Some("kubernetes.io~csi"), None, Some("mount")]
            }
            VolumePlugin::FlexVolume => &[Some("pods"), None, Some("volumes"), Some("nodeagent~uds"), None],
        }
    }

    fn expected_path(self) -> &'static str {
        match self {
            VolumePlugin::Csi => "the path KUBELET/pods/UID/volumes/kubernetes.io~csi/NAME/mount of a volume",
            VolumePlugin::FlexVolume => "the path KUBELET/pods/UID/volumes/nodeagent~uds/NAME of a volume",
        }
    }
}

impl VolumeTarget {
    /// Parses a path. No component may be special, so that the result lies in the directory of a pod.
    pub fn parse(field: &'static str, text: &str, plugin: VolumePlugin) -> Result<VolumeTarget, VolumeError> {
        let refuse = || VolumeError::field(field, text, plugin.expected_path());
        if !text.starts_with('/') {
            return Err(refuse());
        }
        let mut names = Vec::new();
        for component in Path::new(text).components().skip(1) {
            match component {
                Component::Normal(name) => names.push(name.to_str().ok_or_else(refuse)?),
                _ => return Err(refuse()),
            }
        }
        let pattern = plugin.path_pattern();
        let start = names.len().checked_sub(pattern.len()).ok_or_else(refuse)?;
        let (root, tail) = names.split_at(start);
        let mut variable = Vec::new();
        for (name, expected) in tail.iter().zip(pattern) {
            match expected {
                Some(expected) if name != expected => return Err(refuse()),
                Some(_) => {}
                None => variable.push((*name).to_owned()),
            }
        }
        let [pod_uid, volume_name] = <[String; 2]>::try_from(variable).map_err(|_| refuse())?;
        if !is_plain(&pod_uid, MAX_UID_BYTES) || !is_plain(&volume_name, MAX_VOLUME_NAME_BYTES) {
            return Err(refuse());
        }
        let kubelet_dir = Path::new("/").join(root.join("/"));
        // Made of the components, so that the path has one form.
        let path = kubelet_dir.join(tail.join("/"));
        Ok(VolumeTarget { path, kubelet_dir, pod_uid, volume_name })
    }

    /// Checks that the volume lies below this directory of kubelet.
    fn check_kubelet_dir(self, kubelet_dir: &Path) -> Result<VolumeTarget, VolumeError> {
        if self.kubelet_dir != kubelet_dir {
            let text = self.path.display().to_string();
            return Err(VolumeError::field("target_path", &text, "below the directory --kubelet-dir"));
        }
        Ok(self)
    }
}

impl PodVolume {
    /// Checks a request. kubelet must have described the pod: users can write the same keys into the attributes of a
    /// volume, but they cannot know the UID in kubelet's path before the pod exists.
    pub fn from_request(
        request: &NodePublishVolumeRequest,
        kubelet_dir: &Path,
    ) -> Result<PodVolume, VolumeError> {
        let id = check_volume_id(&request.volume_id)?;
        let target = parse_csi_target(&request.target_path, kubelet_dir)?;
        check_capability(request.volume_capability.as_ref())?;
        let context = |field: &'static str| {
            let key = field.trim_start_matches("volume_context[").trim_end_matches(']');
            request.volume_context.get(key).map(String::as_str).unwrap_or_default()
        };
        if context(EPHEMERAL_KEY) != "true" {
            let expected =
                "\"true\": only inline volumes of pods are supported, with podInfoOnMount in the CSIDriver";
            return Err(VolumeError::field(EPHEMERAL_KEY, context(EPHEMERAL_KEY), expected));
        }
        let uid = context(UID_KEY);
        if uid != target.pod_uid {
            return Err(VolumeError::field(UID_KEY, uid, "the UID in target_path"));
        }
        let pod = PodIdentity {
            uid: uid.to_owned(),
            name: check_name(NAME_KEY, context(NAME_KEY), MAX_NAME_BYTES)?,
            namespace: check_name(NAMESPACE_KEY, context(NAMESPACE_KEY), MAX_NAMESPACE_BYTES)?,
            service_account: check_name(SERVICE_ACCOUNT_KEY, context(SERVICE_ACCOUNT_KEY), MAX_NAME_BYTES)?,
        };
        Ok(PodVolume { id, target, pod })
    }

    /// Checks the description of a pod in the options of the FlexVolume driver.
    pub fn from_options(
        target: VolumeTarget,
        option: impl Fn(&str) -> String,
    ) -> Result<PodVolume, VolumeError> {
        let uid = option("kubernetes.io/pod.uid");
        if uid != target.pod_uid {
            return Err(VolumeError::field(
                "kubernetes.io/pod.uid",
                &uid,
                "the UID in the path of the volume",
            ));
        }
        let name = |field: &'static str, max_bytes: usize| check_name(field, &option(field), max_bytes);
        let pod = PodIdentity {
            uid,
            name: name("kubernetes.io/pod.name", MAX_NAME_BYTES)?,
            namespace: name("kubernetes.io/pod.namespace", MAX_NAMESPACE_BYTES)?,
            service_account: name("kubernetes.io/serviceAccount.name", MAX_NAME_BYTES)?,
        };
        Ok(PodVolume { id: flexvolume_id(&target), target, pod })
    }
}

/// Returns the ID of a FlexVolume, made of the UID of the pod and the name of the volume.
pub fn flexvolume_id(target: &VolumeTarget) -> String {
    format!("{}.{}", target.pod_uid, target.volume_name)
}

/// Checks the ID of a volume, which becomes the name of a file.
pub fn check_volume_id(id: &str) -> Result<String, VolumeError> {
    if !is_plain(id, MAX_VOLUME_ID_BYTES) {
        let expected = "1 to 128 letters, digits, '-', '_' and '.', without a dot in front";
        return Err(VolumeError::field("volume_id", id, expected));
    }
    Ok(id.to_owned())
}

pub fn parse_csi_target(text: &str, kubelet_dir: &Path) -> Result<VolumeTarget, VolumeError> {
    VolumeTarget::parse("target_path", text, VolumePlugin::Csi)?.check_kubelet_dir(kubelet_dir)
}

fn check_capability(capability: Option<&VolumeCapability>) -> Result<(), VolumeError> {
    let refuse = |field, value: &str, expected| Err(VolumeError::field(field, value, expected));
    match capability.and_then(|capability| capability.access_type.as_ref()) {
        Some(AccessType::Mount(mount)) if !mount.fs_type.is_empty() => {
            refuse("volume_capability.mount.fs_type", &mount.fs_type, "empty: the volume has no file system")
        }
        Some(AccessType::Mount(mount)) if !mount.mount_flags.is_empty() => {
            let flags = mount.mount_flags.join(",");
            refuse("volume_capability.mount.mount_flags", &flags, "empty: mount options are fixed")
        }
        Some(AccessType::Mount(_)) => Ok(()),
        Some(AccessType::Block(_)) => refuse("volume_capability.access_type", "block", "mount"),
        None => refuse("volume_capability", "", "present with an access type"),
    }
}

/// Checks a name of Kubernetes.
fn check_name(field: &'static str, name: &str, max_bytes: usize) -> Result<String, VolumeError> {
    let is_name_byte = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    if name.is_empty() || name.len() > max_bytes || name.starts_with('.') || !name.bytes().all(is_name_byte) {
        let expected = "a name of Kubernetes: lowercase letters, digits, '-' and '.'";
        return Err(VolumeError::field(field, name, expected));
    }
    Ok(name.to_owned())
}

/// Returns whether the text can be the name of a file and nothing else.
pub fn is_plain(text: &str, max_bytes: usize) -> bool {
    let has_plain_bytes = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    !text.is_empty() && text.len() <= max_bytes && !text.starts_with('.') && has_plain_bytes
}
