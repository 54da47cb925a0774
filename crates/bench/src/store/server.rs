//! The two servers, each a process with its own directory, gone when dropped.

use std::error::Error;
use std::fs;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use tonic::transport::Endpoint;

pub struct Server {
    child: Child,
    pub url: String,
    _dir: TempDir,
}

/// In KiB: resident pages, and those of them that belong to nobody else and to no file.
pub struct Memory {
    pub resident: u64,
    pub own: u64,
}

impl Server {
    pub async fn etcd() -> Result<Server, Box<dyn Error>> {
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
        Server::start(command, client, dir).await
    }

    /// The release build that lies beside this program.
    pub async fn embedded() -> Result<Server, Box<dyn Error>> {
        let url = format!("http://127.0.0.1:{}", free_port()?);
        let dir = TempDir::new()?;
        let program = std::env::current_exe()?.with_file_name("tortie");
        if !program.exists() {
            return Err(format!("{} is missing: cargo build --release -p tortie", program.display()).into());
        }
        let mut command = Command::new(program);
        command.arg("datastore").arg("--data-dir").arg(dir.path()).args(["--listen", &url]);
        Server::start(command, url, dir).await
    }

    async fn start(mut command: Command, url: String, dir: TempDir) -> Result<Server, Box<dyn Error>> {
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let server = Server { child, url, _dir: dir };
        for _ in 0..200 {
            if Endpoint::from_shared(server.url.clone())?.connect().await.is_ok() {
                // etcd listens before it has elected itself.
                tokio::time::sleep(Duration::from_secs(1)).await;
                return Ok(server);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err(format!("{command:?} does not answer").into())
    }

    /// Processor time used so far, in all its threads.
    pub fn processor_time(&self) -> Result<Duration, Box<dyn Error>> {
        let mut time = Duration::ZERO;
        for thread in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            // Nanoseconds on a processor come first; a thread may have ended meanwhile.
            if let Ok(stat) = fs::read_to_string(thread?.path().join("schedstat")) {
                let spent = stat.split_whitespace().next().and_then(|field| field.parse().ok());
                time += Duration::from_nanos(spent.unwrap_or(0));
            }
        }
        Ok(time)
    }

    pub fn memory(&self) -> Result<Memory, Box<dyn Error>> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
        };
        Ok(Memory { resident: field("VmRSS:"), own: field("RssAnon:") })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
