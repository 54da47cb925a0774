//! Runs a real Envoy for the duration of one test, in a network namespace.

use crate::namespace_command;
use crate::process::TestProcess;
use crate::run;
use serde_json::Value;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit for Envoy to become ready. Test machines may be heavily loaded.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
const READY_POLL_INTERVAL: Duration = Duration::from_millis(20);
const ADMIN_TIMEOUT: Duration = Duration::from_secs(10);

/// A running Envoy. Dropping it kills the process; the files remain in the directory of the caller.
#[derive(Debug)]
pub struct Envoy {
    process: TestProcess,
    dir: PathBuf,
}

impl Envoy {
    /// Starts Envoy in `namespace`, or in the current network namespace if that is `None`, and waits until it is
    /// ready. Writes its configuration, its log and the socket of its administration interface, which is added to
    /// `config`, to `dir`.
    pub fn start(namespace: Option<&str>, dir: &Path, mut config: Value) -> Envoy {
        std::fs::create_dir_all(dir).unwrap();
        let config_file = dir.join("envoy.json");
        config["admin"]["address"]["pipe"]["path"] = dir.join("admin.sock").display().to_string().into();
        std::fs::write(&config_file, config.to_string()).unwrap();
        let log = File::create(dir.join("envoy.log")).unwrap();
        let mut command = namespace_command(namespace, envoy_program());
        command.arg("--config-path").arg(config_file);
        // Without hot restart, several instances need no shared memory and no distinct numbers.
        command.args(["--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"]);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let mut envoy = Envoy { process: TestProcess::start(&mut command), dir: dir.to_owned() };
        let deadline = Instant::now() + READY_TIMEOUT;
        while !envoy.ask_admin("GET", "/ready").is_ok_and(|response| response.contains("LIVE")) {
            assert!(!envoy.process.ended(), "Envoy exited at its start:\n{}", envoy.log());
            assert!(
                Instant::now() < deadline,
                "Envoy is not ready after {READY_TIMEOUT:?}:\n{}",
                envoy.log()
            );
            std::thread::sleep(READY_POLL_INTERVAL);
        }
        envoy
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("envoy.log")).unwrap_or_default()
    }

    /// Returns the value of a counter or gauge, or 0 if it does not exist yet.
    pub fn statistic(&self, name: &str) -> u64 {
        let response = self.ask_admin("GET", &format!("/stats?filter=^{name}$")).unwrap();
        let line = response.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.map_or(0, |value| value.trim().parse().unwrap())
    }

    /// Sends a request to the administration interface and returns the whole response.
    fn ask_admin(&self, method: &str, path: &str) -> io::Result<String> {
        let mut stream = UnixStream::connect(self.dir.join("admin.sock"))?;
        stream.set_read_timeout(Some(ADMIN_TIMEOUT))?;
        write!(stream, "{method} {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n")?;
        let mut response = String::new();
        stream.read_to_string(&mut response)?;
        Ok(response)
    }
}

/// Returns the path of the Envoy that `scripts/envoy` has fetched. Panics if it is missing.
pub fn envoy_program() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/envoy");
    let program = PathBuf::from(run(Command::new(script).arg("where")).trim());
    assert!(program.is_file(), "{} is missing: run `scripts/envoy` first", program.display());
    program
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TestNamespace;
    use serde_json::json;

    #[test]
    fn envoy_starts_and_ends_in_a_namespace() {
        let namespace = TestNamespace::new("envoy");
        let dir = tempfile::tempdir().unwrap();
        let envoy = Envoy::start(Some(namespace.name()), dir.path(), json!({}));
        assert_eq!(envoy.statistic("server.live"), 1);
        assert_eq!(envoy.statistic("no.such.statistic"), 0);
        let process = PathBuf::from(format!("/proc/{}", envoy.id()));
        assert!(process.exists());
        drop(envoy);
        assert!(!process.exists());
    }
}
