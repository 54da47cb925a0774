//! What a node sees of the file system: the host's programs, with state and settings of its own.
//!
//! Nothing is written outside of the lab's directory: where a node writes to the host's directories, a layer of its own
//! lies over them.

use crate::error::{Error, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Directories of the host over which a node has a layer of its own.
const LAYERED: [&str; 3] = ["etc", "opt", "var"];
/// Directories that must not be part of a layer: what is in them is the lower part of layers itself, is mounted on, or
/// would show what the host has there.
const OWN: [&str; 4] = ["var/lib/containerd", "var/lib/kubelet", "etc/cni", "opt/cni"];
/// Kubelet gives these their values for the whole machine unless they have them; it is shown files that do.
const SETTINGS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];
const CGROUPS: &str = "/sys/fs/cgroup";
const NONE: Option<&str> = None;

/// For the first process of a node, in a mount namespace that is its own. `lab` and `node` are directories of the lab.
pub fn prepare(lab: &Path, node: &Path) -> Result<()> {
    // What is done here stays here.
    change("/", MsFlags::MS_REC | MsFlags::MS_PRIVATE)?;
    // Namespaces of others would live on for as long as this one has them.
    for entry in fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let _ = umount2(&entry.path(), MntFlags::MNT_DETACH);
    }
    // Both will be covered, and are found again by these.
    let (lab_dir, cgroups) = (open(lab)?, open(Path::new(CGROUPS))?);
    for name in LAYERED {
        layer(&node.join("layers").join(name), name)?;
    }
    for name in OWN {
        bind(&directory(node.join("own").join(name))?, &directory(Path::new("/").join(name))?)?;
    }
    fresh("proc", "/proc")?;
    fresh("sysfs", "/sys")?;
    bind(&by_descriptor(&cgroups), Path::new(CGROUPS))?;
    fresh("tmpfs", "/run")?;
    directory(lab.to_owned())?;
    bind(&by_descriptor(&lab_dir), lab)?;
    for name in ["/run/lock", "/run/netns"] {
        directory(PathBuf::from(name))?;
    }
    // The daemon's sockets are seen from outside too.
    bind(&directory(node.join("run"))?, &directory(PathBuf::from("/run/tortie"))?)?;
    for (name, value) in SETTINGS {
        let file = directory(node.join("settings"))?.join(name.replace('/', "."));
        fs::write(&file, format!("{value}\n")).map_err(Error::file(&file))?;
        let setting = Path::new("/proc/sys").join(name);
        if setting.exists() {
            bind(&file, &setting)?;
        }
    }
    for name in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
        let file = Path::new("/proc/sys").join(name);
        fs::write(&file, "1").map_err(Error::file(&file))?;
    }
    // Containers and their runtime show each other what they mount.
    change("/", MsFlags::MS_REC | MsFlags::MS_SHARED)
}

fn layer(dir: &Path, name: &str) -> Result<()> {
    let (upper, work) = (directory(dir.join("upper"))?, directory(dir.join("work"))?);
    let lower = Path::new("/").join(name);
    let options =
        format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
    mount(Some("overlay"), &lower, Some("overlay"), MsFlags::empty(), Some(options.as_str()))
        .map_err(|error| refused("a layer", &lower, error))
}

fn bind(from: &Path, to: &Path) -> Result<()> {
    mount(Some(from), to, NONE, MsFlags::MS_BIND | MsFlags::MS_REC, NONE)
        .map_err(|error| refused(&from.display().to_string(), to, error))
}

fn fresh(kind: &str, to: &str) -> Result<()> {
    mount(Some(kind), to, Some(kind), MsFlags::empty(), NONE)
        .map_err(|error| refused(kind, Path::new(to), error))
}

fn change(path: &str, flags: MsFlags) -> Result<()> {
    mount(NONE, path, NONE, flags, NONE).map_err(|error| refused("a change", Path::new(path), error))
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(Error::file(path))
}

/// A path that leads to a directory whatever is mounted over its name.
fn by_descriptor(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn directory(path: PathBuf) -> Result<PathBuf> {
    fs::create_dir_all(&path).map_err(Error::file(&path))?;
    Ok(path)
}

fn refused(what: &str, to: &Path, error: nix::Error) -> Error {
    Error::Kernel { object: format!("mount of {what} on {}", to.display()), reason: error.to_string() }
}
