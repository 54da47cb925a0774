//! Finds the programs that are not part of Tortie.

use crate::error::{LabError, LabResult};
use std::path::{Path, PathBuf};

/// Programs of Kubernetes, which must all be in one directory.
const KUBERNETES_PROGRAMS: [&str; 6] =
    ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"];
/// CoreDNS, in the same directory.
pub const DNS_PROGRAM: &str = "coredns";
/// Programs that a node needs from the host, with the Debian package of each.
const HOST_PROGRAMS: [(&str, &str); 7] = [
    ("containerd", "containerd"),
    ("ctr", "containerd"),
    ("runc", "runc"),
    ("iptables", "iptables"),
    ("conntrack", "conntrack"),
    ("busybox", "busybox-static"),
    ("wget", "wget"),
];
/// Directories where distributions install CNI plugins.
const CNI_PLUGIN_DIRECTORIES: [&str; 3] = ["/usr/lib/cni", "/usr/libexec/cni", "/opt/cni/bin"];
/// The CNI plugin that every runtime needs to create a pod.
const LOOPBACK_PLUGIN: &str = "loopback";

#[derive(Clone, Debug)]
pub struct KubernetesPrograms {
    pub dir: PathBuf,
}

impl KubernetesPrograms {
    /// Looks in the given directory, or in the directories of the PATH.
    pub fn find(given: Option<&Path>) -> LabResult<KubernetesPrograms> {
        let Some(dir) = given else {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let found = std::env::split_paths(&path).find(|dir| missing(dir).is_empty());
            return found.map(|dir| KubernetesPrograms { dir }).ok_or_else(|| {
                LabError::refused(format!(
                    "Kubernetes is not on the PATH ({}): `make kube` builds it and prints its directory, for --kube",
                    KUBERNETES_PROGRAMS.join(", ")
                ))
            });
        };
        let dir = std::path::absolute(dir).map_err(LabError::file(dir))?;
        match missing(&dir).as_slice() {
            [] => Ok(KubernetesPrograms { dir }),
            names => Err(LabError::refused(format!(
                "{} has no {}: `make kube` builds Kubernetes and prints its directory, for --kube",
                dir.display(),
                names.join(", ")
            ))),
        }
    }

    /// Checks that the directory has CoreDNS.
    pub fn check_dns(&self) -> LabResult<()> {
        if self.dir.join(DNS_PROGRAM).is_file() {
            return Ok(());
        }
        Err(LabError::refused(format!(
            "{} has no {DNS_PROGRAM}: `make kube` builds it; --no-dns starts a cluster without DNS",
            self.dir.display()
        )))
    }

    /// Checks that the host has the programs that nodes need, before anything is created.
    pub fn check_host(&self) -> LabResult<()> {
        let lacking = HOST_PROGRAMS.iter().filter(|(program, _)| which(program).is_none());
        let mut lacking: Vec<String> =
            lacking.map(|(program, package)| format!("{program} (package {package})")).collect();
        if plugins().is_none() {
            lacking.push(format!("CNI plugin {LOOPBACK_PLUGIN} (package containernetworking-plugins)"));
        }
        if !lacking.is_empty() {
            return Err(LabError::refused(format!("nodes of Kubernetes need {}", lacking.join(", "))));
        }
        Ok(())
    }
}

/// Returns the directory of the host's CNI plugins.
pub fn plugins() -> Option<&'static Path> {
    CNI_PLUGIN_DIRECTORIES.iter().map(Path::new).find(|dir| dir.join(LOOPBACK_PLUGIN).is_file())
}

/// Returns the first file of that name on the PATH.
pub fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}

fn missing(dir: &Path) -> Vec<&'static str> {
    KUBERNETES_PROGRAMS.iter().copied().filter(|name| !dir.join(name).is_file()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_programs_are_named_with_their_source() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("kubelet"), "").unwrap();
        let error = KubernetesPrograms::find(Some(dir.path())).unwrap_err().to_string();
        assert!(error.contains("kube-apiserver") && error.contains("make kube"), "{error}");
        assert!(!error.contains("kubelet"), "{error}");
        for name in KUBERNETES_PROGRAMS {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let programs = KubernetesPrograms::find(Some(dir.path())).unwrap();
        assert_eq!(programs.dir, dir.path());
        let error = programs.check_dns().unwrap_err().to_string();
        assert!(error.contains("coredns") && error.contains("--no-dns"), "{error}");
        std::fs::write(dir.path().join(DNS_PROGRAM), "").unwrap();
        programs.check_dns().unwrap();
    }
}
