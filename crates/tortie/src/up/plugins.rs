//! Installs the CNI files of `tortie up`: the plugins and the network configuration, in the runtime's directories.
//! Calico's files are kept until `tortie down`, and the settings of its network are carried over.

use super::UpArgs;
use super::manifest::UpManifest;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use tortie_cni::{CniPlugin, PLUGIN_EXECUTABLE};
use tortie_ctl::CommandError;
use tortie_node::{CniFiles, InstallError};

const CONFLIST_FILE: &str = "10-calico.conflist";
/// Default network name of a host without a previous network.
const DEFAULT_NETWORK: &str = "tortie";

/// The files to install.
#[derive(Debug)]
pub struct CniInstallation {
    pub conflist: PathBuf,
    programs: Vec<PathBuf>,
    list: Value,
    /// Whether another installation had a network here.
    pub is_takeover: bool,
    /// Whether the existing configuration is not JSON, so that nothing is carried over from it.
    is_unreadable: bool,
}

impl CniInstallation {
    /// Detects everything that would make the installation fail. Changes nothing.
    pub fn prepare(args: &UpArgs, manifest: &UpManifest) -> Result<CniInstallation, CommandError> {
        let files = CniFiles::load(&args.node.state_dir).map_err(message)?;
        let programs =
            [CniPlugin::Calico, CniPlugin::CalicoIpam].map(|plugin| args.cni_bin_dir.join(plugin.name()));
        let conflist = args.cni_conf_dir.join(CONFLIST_FILE);
        for path in programs.iter().chain([&conflist]) {
            files.check(path).map_err(message)?;
        }
        let found = match manifest.files.contains(&conflist) {
            true => None,
            false => files.original(&conflist).map_err(message)?,
        };
        let is_unreadable = found.as_ref().is_some_and(|text| !tortie_node::is_readable_network(text));
        let original = found.filter(|_| !is_unreadable);
        let is_takeover = original.is_some();
        let list = configuration(args, original.as_deref())
            .map_err(|reason| CommandError::Message(format!("{}: {reason}", conflist.display())))?;
        Ok(CniInstallation { conflist, programs: programs.to_vec(), list, is_takeover, is_unreadable })
    }

    pub fn network(&self) -> &str {
        self.list["name"].as_str().unwrap_or(DEFAULT_NETWORK)
    }

    /// Returns a warning for the operator, if any.
    pub fn warning(&self) -> Option<String> {
        let path = self.conflist.display();
        self.is_unreadable
            .then(|| format!("warning: {path} is not JSON: it is kept, and nothing is carried over from it"))
    }

    /// Installs the plugins before the configuration, since a runtime uses the network as soon as its configuration
    /// exists.
    pub fn install(&self, manifest: &mut UpManifest, state_dir: &Path) -> Result<(), CommandError> {
        let mut files = CniFiles::load(state_dir).map_err(message)?;
        // An earlier version recorded these files in the manifest.
        for path in self.programs.iter().chain([&self.conflist]) {
            if manifest.files.contains(path) {
                files.claim(path).map_err(message)?;
                manifest.files.remove(path);
                manifest.save(state_dir)?;
            }
        }
        for path in &self.programs {
            files.write(path, PLUGIN_EXECUTABLE, 0o755).map_err(message)?;
        }
        let text = format!("{:#}\n", self.list);
        files.write(&self.conflist, text.as_bytes(), 0o644).map_err(message)
    }
}

fn message(error: InstallError) -> CommandError {
    CommandError::Message(error.to_string())
}

fn configuration(args: &UpArgs, original: Option<&[u8]>) -> Result<Value, InstallError> {
    let Some(original) = original else {
        let ipv6 = if args.ipv6 { "true" } else { "false" };
        let ipam = json!({"type": CniPlugin::CalicoIpam.name(), "assign_ipv4": "true", "assign_ipv6": ipv6});
        let mut plugin = json!({"type": CniPlugin::Calico.name(), "ipam": ipam});
        plugin["tortie_socket"] = json!(args.node.socket());
        let name = args.network.as_deref().unwrap_or(DEFAULT_NETWORK);
        return Ok(json!({"name": name, "cniVersion": "1.0.0", "plugins": [plugin]}));
    };
    let mut own = Map::from_iter([("tortie_socket".to_owned(), json!(args.node.socket()))]);
    if args.ipv6 {
        own.insert("ipam".to_owned(), json!({"assign_ipv6": "true"}));
    }
    let mut list = tortie_node::carry_over(original, &own)?;
    if let Some(name) = &args.network {
        list["name"] = json!(name);
    }
    Ok(list)
}
