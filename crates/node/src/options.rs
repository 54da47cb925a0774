//! How the daemon is started.

use clap::Args;
use std::path::{Path, PathBuf};

const STATE_DIR: &str = "/var/lib/tortie";
const CALICO_DIR: &str = "/var/lib/calico";

// No doc comment here: it would become the help of every command that takes these.
#[derive(Args, Clone, Debug)]
pub struct NodeArgs {
    /// Records of what is attached here
    #[arg(long, value_name = "DIR", env = "TORTIE_STATE_DIR", default_value = STATE_DIR)]
    pub state_dir: PathBuf,
    /// Sockets
    #[arg(long, value_name = "DIR", env = "TORTIE_RUN_DIR", default_value = "/run/tortie")]
    pub run_dir: PathBuf,
    /// The files nodename and mtu, which other software reads; /var/lib/calico, or the state directory if that is
    /// given
    #[arg(long, value_name = "DIR", env = "TORTIE_CALICO_DIR")]
    pub calico_dir: Option<PathBuf>,
    /// Passwords of BGP sessions: a directory per secret, a file per key
    #[arg(long, value_name = "DIR", env = "TORTIE_SECRETS_DIR", default_value = "/etc/calico/secrets")]
    pub secrets_dir: PathBuf,
    /// Where the datastore is, like calicoctl's --config
    #[arg(short, long, value_name = "FILE", default_value = tortie_store::Config::DEFAULT_FILE)]
    pub config: PathBuf,
}

impl NodeArgs {
    pub fn calico_dir(&self) -> &Path {
        match &self.calico_dir {
            Some(dir) => dir,
            None if self.state_dir == Path::new(STATE_DIR) => Path::new(CALICO_DIR),
            None => &self.state_dir,
        }
    }

    pub fn socket(&self) -> PathBuf {
        self.run_dir.join("cni.sock")
    }

    /// Answers questions about the node.
    pub fn query_socket(&self) -> PathBuf {
        self.run_dir.join("node.sock")
    }

    pub fn journal_dir(&self) -> PathBuf {
        self.state_dir.join("attachments")
    }
}
