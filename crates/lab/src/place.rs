//! Directory of a lab and names of its namespaces.

use crate::error::{LabError, LabResult};
use std::path::{Path, PathBuf};

pub const DEFAULT_NAME: &str = "lab";
const LABS_DIR: &str = "/run/tortie-lab";
const NETNS_DIR: &str = "/run/netns";
const MAX_LAB_NAME_LENGTH: usize = 20;

/// Name and directory of a lab. Several labs can run at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabPaths {
    name: String,
    dir: PathBuf,
}

impl LabPaths {
    /// Validates the name and makes `dir` absolute, since it is passed to processes with other working directories.
    pub fn new(name: &str, dir: Option<&Path>) -> LabResult<LabPaths> {
        // No dashes, so that no lab's namespace prefix is a prefix of another lab's names.
        let fits = !name.is_empty()
            && name.len() <= MAX_LAB_NAME_LENGTH
            && name.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        if !fits {
            return Err(LabError::refused(format!(
                "{name:?} is not a valid name for a lab: use up to {MAX_LAB_NAME_LENGTH} lower-case letters and digits"
            )));
        }
        let dir = match dir {
            Some(dir) => std::path::absolute(dir).map_err(LabError::file(dir))?,
            None => Path::new(LABS_DIR).join(name),
        };
        Ok(LabPaths { name: name.to_owned(), dir })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a command line for this lab that a user can copy.
    pub fn command(&self, words: &str) -> String {
        let mut line = "tortie lab".to_owned();
        if self.name != DEFAULT_NAME {
            line += &format!(" --name {}", self.name);
        }
        if self.dir != Path::new(LABS_DIR).join(&self.name) {
            line += &format!(" --dir {}", self.dir.display());
        }
        format!("{line} {words}")
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the directory of all labs if this lab is in it.
    pub fn shared_parent(&self) -> Option<&Path> {
        self.dir.parent().filter(|parent| *parent == Path::new(LABS_DIR))
    }

    pub fn cluster_file(&self) -> PathBuf {
        self.dir.join("lab.json")
    }

    /// Returns the directory with a link to this binary for each of its names.
    pub fn bin(&self) -> PathBuf {
        self.dir.join("bin")
    }

    pub fn node_dir(&self, node: &str) -> PathBuf {
        self.dir.join("nodes").join(node)
    }

    pub fn pods(&self) -> PathBuf {
        self.dir.join("pods")
    }

    pub fn pod_file(&self, pod: &str) -> PathBuf {
        self.pods().join(format!("{pod}.json"))
    }

    pub fn ctl_config(&self) -> PathBuf {
        self.dir.join("calicoctl.cfg")
    }

    /// Returns the common prefix of the lab's namespace names.
    pub fn prefix(&self) -> String {
        format!("tortie-{}-", self.name)
    }

    /// Returns the name of the namespace that holds the network between the nodes.
    pub fn fabric(&self) -> String {
        format!("tortie-{}-net", self.name)
    }

    pub fn node_netns(&self, node: &str) -> String {
        format!("tortie-{}-{node}", self.name)
    }

    pub fn pod_netns(&self, pod: &str) -> String {
        format!("tortie-{}-pod-{pod}", self.name)
    }
}

/// Returns the path of a named namespace.
pub fn netns_path(name: &str) -> PathBuf {
    Path::new(NETNS_DIR).join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_lab_has_the_documented_names() {
        let place = LabPaths::new("lab", None).unwrap();
        assert_eq!(place.dir(), Path::new("/run/tortie-lab/lab"));
        assert_eq!(place.fabric(), "tortie-lab-net");
        assert_eq!(place.node_netns("node1"), "tortie-lab-node1");
        assert_eq!(place.pod_netns("web"), "tortie-lab-pod-web");
        assert!(place.pod_netns("web").starts_with(&place.prefix()));
    }

    #[test]
    fn hints_are_about_this_lab() {
        let line =
            |name: &str, dir: Option<&str>| LabPaths::new(name, dir.map(Path::new)).unwrap().command("down");
        assert_eq!(line("lab", None), "tortie lab down");
        assert_eq!(line("two", None), "tortie lab --name two down");
        assert_eq!(line("two", Some("/tmp/x")), "tortie lab --name two --dir /tmp/x down");
    }

    #[test]
    fn names_that_could_reach_elsewhere_are_refused() {
        for name in ["", "a-b", "../x", "A", "x/y", "aaaaaaaaaaaaaaaaaaaaa"] {
            assert!(LabPaths::new(name, None).is_err(), "{name}");
        }
    }
}
