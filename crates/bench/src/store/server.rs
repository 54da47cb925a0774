//! The two servers, each a process with its own directory, killed when dropped.

use crate::process::{BenchProcess, ProcessMemory, tortie};
use std::error::Error;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use tonic::transport::Endpoint;
use tortie_testkit::free_port;

pub struct BenchStoreServer {
    pub process: BenchProcess,
    pub url: String,
    _dir: TempDir,
}

impl BenchStoreServer {
    pub async fn etcd() -> Result<BenchStoreServer, Box<dyn Error>> {
        let (client, peer) =
            (format!("http://127.0.0.1:{}", free_port()?), format!("http://127.0.0.1:{}", free_port()?));
        let dir = TempDir::new()?;
        let mut command = Command::new("/usr/bin/etcd");
        command
            .arg("--data-dir")
            .arg(dir.path())
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}"), "--log-level", "error"]);
        BenchStoreServer::start(command, client, dir).await
    }

    /// Starts the release build next to this program.
    pub async fn embedded() -> Result<BenchStoreServer, Box<dyn Error>> {
        BenchStoreServer::build(tortie()?).await
    }

    /// Starts a given build of Tortie.
    pub async fn build(program: PathBuf) -> Result<BenchStoreServer, Box<dyn Error>> {
        let url = format!("http://127.0.0.1:{}", free_port()?);
        let dir = TempDir::new()?;
        let mut command = Command::new(program);
        command.arg("datastore").arg("--data-dir").arg(dir.path()).args(["--listen", &url]);
        BenchStoreServer::start(command, url, dir).await
    }

    async fn start(
        mut command: Command,
        url: String,
        dir: TempDir,
    ) -> Result<BenchStoreServer, Box<dyn Error>> {
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let server = BenchStoreServer { process: BenchProcess(child), url, _dir: dir };
        for _ in 0..200 {
            if Endpoint::from_shared(server.url.clone())?.connect().await.is_ok() {
                // etcd accepts connections before it has elected a leader.
                tokio::time::sleep(Duration::from_secs(1)).await;
                return Ok(server);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err(format!("{command:?} does not answer").into())
    }

    pub fn processor_time(&self) -> std::io::Result<Duration> {
        self.process.processor_time()
    }

    pub fn memory(&self) -> std::io::Result<ProcessMemory> {
        self.process.memory()
    }
}
