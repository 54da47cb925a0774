//! Sets up the mounts of a node: the host's programs with the node's own state and settings.
//!
//! A node writes only below the lab's directory: host directories that it writes to are covered by an overlay.

use crate::error::{LabError, LabResult};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Host directories covered by an overlay on each node.
const OVERLAY_DIRECTORIES: [&str; 3] = ["etc", "opt", "var"];
/// Directories that must not be part of an overlay, because they hold lower directories of overlays, are mount points,
/// or would expose the host's files.
const NODE_DIRECTORIES: [&str; 4] = ["var/lib/containerd", "var/lib/kubelet", "etc/cni", "opt/cni"];
/// Sysctls that kubelet sets machine-wide unless they already have these values. Files with the values are mounted over
/// them.
const KUBELET_SYSCTLS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];
const CGROUP_ROOT: &str = "/sys/fs/cgroup";
const NONE: Option<&str> = None;

/// Sets up the mounts. Called by the init process of a node in its own mount namespace. `lab` and `node` are the
/// directories of the lab and the node.
pub fn prepare(lab: &Path, node: &Path) -> LabResult<()> {
    // Keep mount events from propagating to the host.
    set_propagation("/", MsFlags::MS_REC | MsFlags::MS_PRIVATE)?;
    // A mounted network namespace would stay alive as long as this mount namespace refers to it.
    for entry in fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let _ = umount2(&entry.path(), MntFlags::MNT_DETACH);
    }
    // Both paths are covered by mounts below; the descriptors keep them reachable.
    let lab_dir = open(lab)?;
    let cgroups = open(Path::new(CGROUP_ROOT))?;
    for name in OVERLAY_DIRECTORIES {
        mount_overlay(&node.join("layers").join(name), name)?;
    }
    for name in NODE_DIRECTORIES {
        bind(&directory(node.join("own").join(name))?, &directory(Path::new("/").join(name))?)?;
    }
    mount_new("proc", "/proc")?;
    mount_new("sysfs", "/sys")?;
    bind(&by_descriptor(&cgroups), Path::new(CGROUP_ROOT))?;
    mount_new("tmpfs", "/run")?;
    directory(lab.to_owned())?;
    bind(&by_descriptor(&lab_dir), lab)?;
    for name in ["/run/lock", "/run/netns"] {
        directory(PathBuf::from(name))?;
    }
    // The daemon's sockets must also be reachable from the host.
    bind(&directory(node.join("run"))?, &directory(PathBuf::from("/run/tortie"))?)?;
    for (name, value) in KUBELET_SYSCTLS {
        let file = directory(node.join("settings"))?.join(name.replace('/', "."));
        fs::write(&file, format!("{value}\n")).map_err(LabError::file(&file))?;
        let setting = Path::new("/proc/sys").join(name);
        if setting.exists() {
            bind(&file, &setting)?;
        }
    }
    for name in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
        let file = Path::new("/proc/sys").join(name);
        fs::write(&file, "1").map_err(LabError::file(&file))?;
    }
    // Containers and the runtime must see each other's mounts.
    set_propagation("/", MsFlags::MS_REC | MsFlags::MS_SHARED)
}

fn mount_overlay(dir: &Path, name: &str) -> LabResult<()> {
    let upper = directory(dir.join("upper"))?;
    let work = directory(dir.join("work"))?;
    let lower = Path::new("/").join(name);
    let options =
        format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
    mount(Some("overlay"), &lower, Some("overlay"), MsFlags::empty(), Some(options.as_str()))
        .map_err(|error| refused("a layer", &lower, error))
}

fn bind(from: &Path, to: &Path) -> LabResult<()> {
    mount(Some(from), to, NONE, MsFlags::MS_BIND | MsFlags::MS_REC, NONE)
        .map_err(|error| refused(&from.display().to_string(), to, error))
}

fn mount_new(kind: &str, to: &str) -> LabResult<()> {
    mount(Some(kind), to, Some(kind), MsFlags::empty(), NONE)
        .map_err(|error| refused(kind, Path::new(to), error))
}

fn set_propagation(path: &str, flags: MsFlags) -> LabResult<()> {
    mount(NONE, path, NONE, flags, NONE).map_err(|error| refused("a change", Path::new(path), error))
}

fn open(path: &Path) -> LabResult<File> {
    File::open(path).map_err(LabError::file(path))
}

/// Returns a path to the open directory that works also when another mount covers its name.
fn by_descriptor(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn directory(path: PathBuf) -> LabResult<PathBuf> {
    fs::create_dir_all(&path).map_err(LabError::file(&path))?;
    Ok(path)
}

fn refused(what: &str, to: &Path, error: nix::Error) -> LabError {
    LabError::Kernel { object: format!("mount of {what} on {}", to.display()), reason: error.to_string() }
}
