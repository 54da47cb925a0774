//! Installs the CNI plugins on the host and keeps them installed: executables, credentials, and the network
//! configuration last, so that a runtime never finds a network that it cannot use.
//!
//! Each file is recorded in the state directory before it is written, and [`remove`] removes them in reverse order.
//! Files of another program at the same paths are kept until then, and the settings of its network are carried over.

mod files;
mod kubeconfig;
mod network;

use crate::startup::EnvironmentVariables;
use crate::state::NodeState;
pub use files::{CniFiles, FileRemoval, RemovedFile};
use kubeconfig::CniCredentials;
use network::{CarryOverError, NetworkTemplate, PlaceholderValues};
pub use network::{carry_over, is_readable_network};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tortie_cni::{CniPlugin, PLUGIN_EXECUTABLE};
use tortie_store::config::KubernetesTarget;
use tortie_store::orchestrator::OrchestratorClient;
use tortie_store::{StoreError, StoreLimits};

/// Component name on the health page.
const CNI_INSTALLATION_COMPONENT: &str = "CNI installation";
/// Interval between checks whether everything is still installed.
const INSTALLATION_CHECK_INTERVAL: Duration = Duration::from_secs(60);
const INSTALLATION_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Mount point of the host's directories in a container.
const HOST_MOUNT_DIR: &str = "/host";
const KUBECONFIG_FILE_NAME: &str = "calico-kubeconfig";

#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{}: is a directory", path.display())]
    Directory { path: PathBuf },
    /// A list of installed files in the state directory.
    #[error("{}: {source}", path.display())]
    List { path: PathBuf, source: serde_json::Error },
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Removal(Vec<InstallError>),
    #[error("CNI_CONF_NAME, CNI_OLD_CONF_NAME: {0:?} is not the name of a file")]
    FileName(String),
    #[error("CNI_NETWORK_CONFIG_FILE {path}: {source}")]
    TemplateFile { path: String, source: io::Error },
    #[error("the network configuration is not JSON after its placeholders were replaced: {0}")]
    Template(serde_json::Error),
    #[error("cannot carry over the existing network configuration: {0}")]
    CarryOver(#[from] CarryOverError),
    #[error("CNI_TOKEN_REFRESH_INTERVAL={0} is not a duration")]
    RefreshInterval(String),
    #[error("cannot get a token for the service account {namespace}/{account}: {source}")]
    Token { namespace: String, account: String, source: Box<StoreError> },
    #[error(transparent)]
    Kubernetes(#[from] StoreError),
}

/// The configuration and state of the installation.
#[derive(Debug)]
pub struct CniInstaller {
    bin_dir: PathBuf,
    conf_dir: PathBuf,
    /// Path of the configuration directory as seen by other processes of the host.
    shown_dir: PathBuf,
    file: String,
    /// Name of another installation's configuration file, which is moved away.
    old_file: Option<String>,
    keep_programs: bool,
    network: NetworkTemplate,
    values: PlaceholderValues,
    credentials: Option<CniCredentials>,
    orchestrator: Option<KubernetesTarget>,
    files: CniFiles,
    programs_checked: bool,
}

impl CniInstaller {
    /// Creates an installer. `kubernetes_datastore` is whether Kubernetes is the node's datastore.
    pub fn new(
        variables: &EnvironmentVariables,
        node: &str,
        state_dir: &Path,
        kubernetes_datastore: bool,
        orchestrator: Option<KubernetesTarget>,
    ) -> Result<CniInstaller, InstallError> {
        let shown_dir = PathBuf::from(variables.get_or("CNI_NET_DIR", "/etc/cni/net.d"));
        let file = check_file_name(variables.get_or("CNI_CONF_NAME", "10-calico.conflist"))?;
        let old_file = check_file_name(variables.get_or("CNI_OLD_CONF_NAME", &file))?;
        let kubeconfig = shown_dir.join(KUBECONFIG_FILE_NAME);
        Ok(CniInstaller {
            bin_dir: find_host_dir(&variables.get_or("CNI_BIN_DIR", "/opt/cni/bin")),
            conf_dir: find_host_dir(&shown_dir.display().to_string()),
            old_file: Some(old_file).filter(|old| *old != file),
            file,
            keep_programs: !variables.flag("UPDATE_CNI_BINARIES", true),
            network: NetworkTemplate::read(variables, orchestrator.is_some())?,
            values: PlaceholderValues::new(variables, node, kubernetes_datastore, &kubeconfig),
            credentials: orchestrator.as_ref().map(|_| CniCredentials::new(variables)).transpose()?,
            orchestrator,
            files: CniFiles::load(state_dir)?,
            shown_dir,
            programs_checked: false,
        })
    }

    /// Keeps the plugins installed. Never returns. A failure is retried and makes the node unready until it is
    /// resolved.
    pub async fn run(mut self, state: Arc<NodeState>) {
        loop {
            let delay = match self.install_missing().await {
                Ok(delay) => {
                    state.set_trouble(CNI_INSTALLATION_COMPONENT, None);
                    delay
                }
                Err(error) => {
                    tracing::warn!(reason = error.to_string(), "cannot install the CNI plugins; retrying");
                    state.set_trouble(CNI_INSTALLATION_COMPONENT, Some(error.to_string()));
                    INSTALLATION_RETRY_DELAY
                }
            };
            tokio::time::sleep(delay).await;
        }
    }

    /// Installs whatever is missing or differs. Returns the time until the next check.
    async fn install_missing(&mut self) -> Result<Duration, InstallError> {
        let text = self.network.fill(&self.values, self.read_original()?.as_deref())?;
        self.write_programs()?;
        let mut delay = INSTALLATION_CHECK_INTERVAL;
        if let (Some(credentials), Some(target)) = (&mut self.credentials, &self.orchestrator) {
            let path = self.conf_dir.join(KUBECONFIG_FILE_NAME);
            if !path.exists() || credentials.are_due() {
                let orchestrator = OrchestratorClient::connect(target, StoreLimits::default()).await?;
                let text = credentials.renew(&orchestrator).await?;
                self.files.write(&path, text.as_bytes(), 0o600)?;
            }
            delay = delay.min(credentials.remaining());
        }
        self.files.write(&self.conf_dir.join(&self.file), text.as_bytes(), 0o600)?;
        if let Some(old) = &self.old_file {
            self.files.set_aside(&self.conf_dir.join(old))?;
        }
        Ok(delay)
    }

    /// Returns the network configuration of another installation.
    fn read_original(&self) -> Result<Option<Vec<u8>>, InstallError> {
        for name in [Some(&self.file), self.old_file.as_ref()].into_iter().flatten() {
            let path = self.conf_dir.join(name);
            match self.files.original(&path)? {
                Some(text) if is_readable_network(&text) => return Ok(Some(text)),
                Some(_) if !self.programs_checked => tracing::warn!(
                    path = %path.display(),
                    "the existing network configuration is not JSON; it is kept, and its settings are not carried over"
                ),
                Some(_) | None => {}
            }
        }
        Ok(None)
    }

    fn write_programs(&mut self) -> Result<(), InstallError> {
        for plugin in [CniPlugin::Calico, CniPlugin::CalicoIpam] {
            let to = self.bin_dir.join(plugin.name());
            if to.exists() && (self.keep_programs || self.programs_checked) {
                continue;
            }
            self.files.write(&to, PLUGIN_EXECUTABLE, 0o755)?;
        }
        if !self.programs_checked {
            let programs = self.bin_dir.display();
            tracing::info!(%programs, networks = %self.shown_dir.display(), "installed the CNI plugins");
        }
        self.programs_checked = true;
        Ok(())
    }
}

/// Removes the files that were installed with this state directory, the network configuration first, and restores the
/// originals.
pub fn remove(state_dir: &Path) -> Result<Vec<RemovedFile>, InstallError> {
    CniFiles::load(state_dir)?.remove()
}

/// Returns the path of a host directory as seen from this process.
fn find_host_dir(path: &str) -> PathBuf {
    let mounted = Path::new(HOST_MOUNT_DIR).join(path.trim_start_matches('/'));
    if mounted.is_dir() { mounted } else { PathBuf::from(path) }
}

/// Rejects file names that lead out of their directory.
fn check_file_name(name: String) -> Result<String, InstallError> {
    if name.contains('/') || name.starts_with('.') {
        return Err(InstallError::FileName(name));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::collections::BTreeMap;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn variables(dir: &Path) -> EnvironmentVariables {
        let text = |path: PathBuf| path.display().to_string();
        EnvironmentVariables(BTreeMap::from([
            ("CNI_NET_DIR".to_owned(), text(dir.join("net.d"))),
            ("CNI_BIN_DIR".to_owned(), text(dir.join("bin"))),
            ("CNI_OLD_CONF_NAME".to_owned(), "00-old.conf".to_owned()),
        ]))
    }

    #[tokio::test]
    async fn plugins_are_installed_repaired_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let state = at("state");
        for name in ["net.d", "bin", "state"] {
            fs::create_dir(at(name)).unwrap();
        }
        fs::write(
            at("net.d/00-old.conf"),
            r#"{"name": "old", "type": "calico", "mtu": 1400, "ipam": {"type": "calico-ipam"}}"#,
        )
        .unwrap();
        fs::write(at("bin/other"), "not ours").unwrap();
        let mut installer = CniInstaller::new(&variables(dir.path()), "n1", &state, false, None).unwrap();
        assert_eq!(installer.install_missing().await.unwrap(), INSTALLATION_CHECK_INTERVAL);
        for name in ["bin/calico", "bin/calico-ipam"] {
            assert!(fs::read(at(name)).unwrap() == PLUGIN_EXECUTABLE, "{name}");
            assert_eq!(fs::metadata(at(name)).unwrap().permissions().mode() & 0o777, 0o755, "{name}");
        }
        // A plugin that is not executable, for example after a manual copy, is repaired.
        fs::set_permissions(at("bin/calico"), fs::Permissions::from_mode(0o644)).unwrap();
        installer.programs_checked = false;
        installer.install_missing().await.unwrap();
        assert_eq!(fs::metadata(at("bin/calico")).unwrap().permissions().mode() & 0o777, 0o755);
        let list: Value = serde_json::from_slice(&fs::read(at("net.d/10-calico.conflist")).unwrap()).unwrap();
        assert_eq!(list["plugins"][0]["nodename"], "n1");
        assert_eq!((&list["name"], &list["plugins"][0]["mtu"]), (&"old".into(), &1400.into()));
        assert!(!at("net.d/00-old.conf").exists());
        // Removed files are written again.
        for name in ["bin/calico", "net.d/10-calico.conflist"] {
            fs::remove_file(at(name)).unwrap();
        }
        installer.install_missing().await.unwrap();
        assert!(at("bin/calico").exists() && at("net.d/10-calico.conflist").exists());
        let removed = remove(&state).unwrap();
        let order: Vec<_> = removed.iter().map(|file| (file.path.clone(), file.removal)).collect();
        assert_eq!(order[0], (at("net.d/00-old.conf"), FileRemoval::Restored));
        assert_eq!(
            order[1],
            (at("net.d/10-calico.conflist"), FileRemoval::Removed),
            "the configuration goes first"
        );
        let left: Vec<_> = fs::read_dir(at("bin")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["other"]);
        let left: Vec<_> =
            fs::read_dir(at("net.d")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["00-old.conf"]);
        assert_eq!(remove(&state).unwrap(), Vec::<RemovedFile>::new());
    }

    #[tokio::test]
    async fn truncated_configuration_is_kept_and_replaced() {
        for half in ["", r#"{"name": "pods", "plug"#] {
            let dir = tempfile::tempdir().unwrap();
            let (state, list) = (dir.path().join("state"), dir.path().join("net.d/10-calico.conflist"));
            fs::create_dir_all(list.parent().unwrap()).unwrap();
            fs::write(&list, half).unwrap();
            let mut installer = CniInstaller::new(&variables(dir.path()), "n1", &state, false, None).unwrap();
            for _ in 0..2 {
                installer.install_missing().await.unwrap();
                let text: Value = serde_json::from_slice(&fs::read(&list).unwrap()).unwrap();
                assert_eq!(text["plugins"][0]["nodename"], "n1");
            }
            remove(&state).unwrap();
            assert_eq!(fs::read_to_string(&list).unwrap(), half);
        }
    }

    #[test]
    fn file_names_with_a_path_are_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let mut variables = variables(dir.path());
        variables.0.insert("CNI_CONF_NAME".into(), "../x".into());
        let refused = CniInstaller::new(&variables, "n1", dir.path(), false, None).unwrap_err().to_string();
        assert!(refused.contains("\"../x\""), "{refused}");
    }
}
