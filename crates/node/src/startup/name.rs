//! Determines the name of the node.

use super::{EnvironmentVariables, StartupError};
use std::path::Path;

/// Returns NODENAME, else the name in Felix's settings, else the name that an earlier run stored, else HOSTNAME, else
/// the kernel's host name.
pub fn read_node_name(
    variables: &EnvironmentVariables,
    felix: &str,
    file: &Path,
) -> Result<String, StartupError> {
    if let Some(named) = [variables.get("NODENAME"), felix].into_iter().find(|name| !name.is_empty()) {
        return Ok(named.to_owned());
    }
    let written = std::fs::read_to_string(file).unwrap_or_default();
    let from_kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let candidates = [
        written.trim().to_owned(),
        variables.get("HOSTNAME").to_lowercase(),
        from_kernel.trim().to_lowercase(),
    ];
    candidates
        .into_iter()
        .find(|name| !name.is_empty())
        .ok_or_else(|| StartupError::Setting("this host has no name: set NODENAME".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn the_strongest_source_wins() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("nodename");
        let name = |felix: &str, pairs: &[(&str, &str)]| {
            let map: BTreeMap<_, _> = pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
            read_node_name(&EnvironmentVariables(map), felix, &file).unwrap()
        };
        assert_eq!(name("", &[("HOSTNAME", "HostA")]), "hosta");
        std::fs::write(&file, "stored").unwrap();
        assert_eq!(name("", &[("HOSTNAME", "HostA")]), "stored");
        assert_eq!(name("felix", &[("HOSTNAME", "HostA")]), "felix");
        assert_eq!(name("felix", &[("NODENAME", " Named "), ("HOSTNAME", "HostA")]), "Named");
    }
}
