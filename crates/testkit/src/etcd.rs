//! Runs a real etcd server for the duration of one test.

use crate::free_port;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Time limit for etcd to accept connections. Test machines may be heavily loaded.
const START_LIMIT: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub struct EtcdTls {
    pub ca_file: PathBuf,
    pub cert_file: PathBuf,
    pub key_file: PathBuf,
    /// Whether clients must present a certificate signed by the CA.
    pub client_cert_auth: bool,
}

#[derive(Clone, Debug, Default)]
pub struct EtcdOptions {
    pub tls: Option<EtcdTls>,
    /// Additional command line arguments.
    pub args: Vec<String>,
}

/// A running etcd. Dropping it kills the process and removes its data.
#[derive(Debug)]
pub struct Etcd {
    options: EtcdOptions,
    home_port: u16,
    client_port: u16,
    peer_port: u16,
    child: Option<Child>,
    dir: TempDir,
}

impl Etcd {
    pub fn start() -> io::Result<Etcd> {
        Etcd::start_with(EtcdOptions::default())
    }

    pub fn start_with(options: EtcdOptions) -> io::Result<Etcd> {
        let home_port = free_port()?;
        let mut etcd = Etcd {
            options,
            home_port,
            client_port: home_port,
            peer_port: free_port()?,
            child: None,
            dir: tempfile::Builder::new().prefix("tortie-etcd-").tempdir()?,
        };
        etcd.restart()?;
        Ok(etcd)
    }

    /// Returns the client URL: `http://127.0.0.1:PORT` or `https://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        let scheme = if self.options.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.client_port)
    }

    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Kills the server with SIGKILL. The data is kept for [`Etcd::restart`].
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Restarts the server on the same ports with the same data and waits until it accepts connections.
    pub fn restart(&mut self) -> io::Result<()> {
        self.kill();
        let log = std::fs::File::create(self.log_file())?;
        let peer = format!("http://127.0.0.1:{}", self.peer_port);
        let mut command = Command::new("etcd");
        command
            .args(["--name", "test", "--log-level", "warn", "--initial-cluster-state", "new"])
            .arg("--data-dir")
            .arg(self.data_dir())
            .args(["--listen-client-urls", &self.endpoint(), "--advertise-client-urls", &self.endpoint()])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("test={peer}")]);
        if let Some(tls) = &self.options.tls {
            command.arg("--trusted-ca-file").arg(&tls.ca_file);
            command.arg("--cert-file").arg(&tls.cert_file).arg("--key-file").arg(&tls.key_file);
            if tls.client_cert_auth {
                command.arg("--client-cert-auth");
            }
        }
        command.args(&self.options.args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command
            .spawn()
            .map_err(|e| io::Error::new(e.kind(), format!("cannot run etcd (package etcd-server): {e}")))?;
        self.child = Some(child);
        self.wait_until_serving()
    }

    /// Restarts the server with the same data on another client port, which no client knows yet.
    pub fn restart_elsewhere(&mut self) -> io::Result<()> {
        self.kill();
        self.client_port = free_port()?;
        self.restart()
    }

    /// Restarts the server on its original client port, undoing [`Etcd::restart_elsewhere`].
    pub fn restart_at_home(&mut self) -> io::Result<()> {
        self.kill();
        self.client_port = self.home_port;
        self.restart()
    }

    /// Runs etcdctl against this server and returns its standard output.
    pub fn ctl(&self, args: &[&str]) -> io::Result<String> {
        let output = self.ctl_output(args)?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(io::Error::other(format!("etcdctl {args:?}: {text}")));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn ctl_output(&self, args: &[&str]) -> io::Result<Output> {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &self.endpoint(), "--dial-timeout", "20s"]);
        // The default of 5 s is too short for a leader election on a busy machine.
        command.args(["--command-timeout", "60s"]);
        if let Some(tls) = &self.options.tls {
            command.arg("--cacert").arg(&tls.ca_file);
            command.arg("--cert").arg(&tls.cert_file).arg("--key").arg(&tls.key_file);
        }
        command.args(args).stdin(Stdio::null()).output()
    }

    fn log_file(&self) -> PathBuf {
        self.dir.path().join("etcd.log")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    /// Returns the directory of this server, which is removed when the server is dropped.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn wait_until_serving(&mut self) -> io::Result<()> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.client_port));
        let deadline = Instant::now() + START_LIMIT;
        // An accepted connection is enough: etcd queues requests that arrive before it has elected a leader.
        while Instant::now() < deadline {
            if let Some(child) = &mut self.child
                && let Some(status) = child.try_wait()?
            {
                return Err(io::Error::other(format!("etcd ended with {status}: {}", self.log())));
            }
            if TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok() {
                return Ok(());
            }
            sleep(Duration::from_millis(20));
        }
        Err(io::Error::other(format!("etcd did not serve on {address}: {}", self.log())))
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_survives_a_kill() {
        let mut etcd = Etcd::start().unwrap();
        etcd.ctl(&["put", "a", "1"]).unwrap();
        etcd.kill();
        etcd.restart().unwrap();
        assert_eq!(etcd.ctl(&["get", "a", "--print-value-only"]).unwrap().trim(), "1");
    }
}
