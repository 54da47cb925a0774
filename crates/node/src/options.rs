//! Command-line options of the node daemon, and the paths derived from them.

use clap::Args;
use std::path::{Path, PathBuf};

const STATE_DIR: &str = "/var/lib/tortie";
const RUN_DIR: &str = "/run/tortie";
const SETTINGS_FILE: &str = "/etc/calico/felix.cfg";
/// Maximum size of a recording in bytes: some hours of a busy node.
const DEFAULT_RECORD_LIMIT_BYTES: u64 = 256 << 20;
const CALICO_DIR: &str = "/var/lib/calico";

// No doc comment here: clap would use it as the help of every command that takes these options.
#[derive(Args, Clone, Debug)]
pub struct NodeArgs {
    /// Directory of the journal of attached containers
    #[arg(long, value_name = "DIR", env = "TORTIE_STATE_DIR", default_value = STATE_DIR)]
    pub state_dir: PathBuf,
    /// Directory of sockets; if given, also of the endpoint status files, which are otherwise in /var/run/calico
    #[arg(long, value_name = "DIR", env = "TORTIE_RUN_DIR", default_value = RUN_DIR)]
    pub run_dir: PathBuf,
    /// Directory of the files nodename and mtu, which other software reads [default: /var/lib/calico, or the state
    /// directory if that is given]
    #[arg(long, value_name = "DIR", env = "TORTIE_CALICO_DIR")]
    pub calico_dir: Option<PathBuf>,
    /// Directory of the passwords of BGP sessions: one directory per Secret, one file per key
    #[arg(long, value_name = "DIR", env = "TORTIE_SECRETS_DIR", default_value = "/etc/calico/secrets")]
    pub secrets_dir: PathBuf,
    /// Maximum number of routes of one family from a BGP peer; if it is exceeded, the session is closed for five
    /// minutes
    #[arg(
        long,
        value_name = "ROUTES",
        env = "TORTIE_BGP_MAX_PREFIXES",
        default_value_t = tortie_bgp::config::DEFAULT_MAX_PREFIXES,
        value_parser = clap::value_parser!(u32).range(1..),
    )]
    pub bgp_max_prefixes: u32,
    /// Maximum number of paths to one prefix (add-path) from a BGP peer; if it is exceeded, the session is closed as
    /// well
    #[arg(
        long,
        value_name = "PATHS",
        env = "TORTIE_BGP_MAX_PATHS",
        default_value_t = tortie_bgp::config::DEFAULT_MAX_PATHS_PER_PREFIX,
        value_parser = clap::value_parser!(u16).range(1..),
    )]
    pub bgp_max_paths: u16,
    /// Leave BGP to a BIRD 2 that runs beside the node; the node writes its configuration
    #[arg(long, env = "TORTIE_BIRD")]
    pub bird: bool,
    /// Configuration file of BIRD, written if BGP is left to it
    #[arg(
        long,
        value_name = "FILE",
        env = "TORTIE_BIRD_CONFIG",
        default_value = "/etc/calico/confd/config/bird.cfg"
    )]
    pub bird_config: PathBuf,
    /// Control socket of BIRD, used if BGP is left to it
    #[arg(
        long,
        value_name = "SOCKET",
        env = "TORTIE_BIRD_SOCKET",
        default_value = "/var/run/calico/bird.ctl"
    )]
    pub bird_socket: PathBuf,
    /// File with settings of this host; variables FELIX_* override it [default: /etc/calico/felix.cfg, or felix.cfg in
    /// the state directory if that is given]
    #[arg(long, value_name = "FILE", env = "TORTIE_FELIX_CONFIG")]
    pub felix_config: Option<PathBuf>,
    /// File with the location of the datastore, as for calicoctl
    #[arg(short, long, value_name = "FILE", default_value = tortie_store::StoreConfig::DEFAULT_FILE)]
    pub config: PathBuf,
    /// Record the events of this node for `tortie replay`; only the owner can read the file
    #[arg(long, value_name = "FILE", env = "TORTIE_RECORD")]
    pub record: Option<PathBuf>,
    /// Install the CNI plugins and keep them installed. An option of `tortie node` only.
    #[arg(skip)]
    pub install_cni: bool,
    /// Maximum size of the recording, which ends there
    #[arg(long, value_name = "BYTES", env = "TORTIE_RECORD_LIMIT", default_value_t = DEFAULT_RECORD_LIMIT_BYTES)]
    pub record_limit: u64,
}

impl NodeArgs {
    pub fn calico_dir(&self) -> &Path {
        match &self.calico_dir {
            Some(dir) => dir,
            None if self.state_dir == Path::new(STATE_DIR) => Path::new(CALICO_DIR),
            None => &self.state_dir,
        }
    }

    pub fn settings_file(&self) -> PathBuf {
        match &self.felix_config {
            Some(file) => file.clone(),
            None if self.state_dir == Path::new(STATE_DIR) => PathBuf::from(SETTINGS_FILE),
            None => self.state_dir.join("felix.cfg"),
        }
    }

    /// Returns whether the node uses the default directories, that is, whether it is the only node of its host.
    pub fn is_the_hosts(&self) -> bool {
        self.state_dir == Path::new(STATE_DIR) && self.own_run_dir().is_none()
    }

    /// Returns the directories that belong to this node alone.
    pub fn own_dirs(&self) -> Vec<&Path> {
        let mut dirs = vec![self.state_dir.as_path(), self.run_dir.as_path()];
        dirs.dedup();
        dirs
    }

    /// Returns the run directory if it is not the default one.
    pub fn own_run_dir(&self) -> Option<&Path> {
        Some(self.run_dir.as_path()).filter(|dir| *dir != Path::new(RUN_DIR))
    }

    pub fn socket(&self) -> PathBuf {
        self.run_dir.join("cni.sock")
    }

    /// Returns the path of the socket for queries about the node.
    pub fn query_socket(&self) -> PathBuf {
        self.run_dir.join("node.sock")
    }

    /// Returns the path of the socket that serves flow records.
    pub fn flows_socket(&self) -> PathBuf {
        self.run_dir.join("flows.sock")
    }

    /// Returns the file with the workloads that have a live HTTP proxy.
    pub fn http_proxies_file(&self) -> PathBuf {
        self.run_dir.join("http-proxies.json")
    }

    pub fn journal_dir(&self) -> PathBuf {
        self.state_dir.join("attachments")
    }

    /// Returns the file with the numbers of objects that the node knows.
    pub fn known_objects_file(&self) -> PathBuf {
        self.state_dir.join("known-objects.json")
    }
}
