//! Runs the four BGP speakers as processes, killed when dropped.

use super::config::{self, OWN_BLOCKS, SpeakerSetup};
use super::ours;
use super::place::{BENCH_ASN, BgpHosts};
use super::report::WorkStart;
use crate::namespace::BenchResult;
use crate::node::BenchNode;
use crate::process::{BenchProcess, ProcessMemory};
use serde_json::json;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tortie_model::{Kind as ResourceKind, Resource, StoreKey, StoreValue};
use tortie_store::StoreClient;

/// Interval between checks whether a process is idle.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// A process that uses less CPU time than this in one interval counts as idle.
const IDLE_CPU_TIME: Duration = Duration::from_millis(4);
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// FRR waits for about a second before it sends routes to a new peer.
const FRR_UPDATE_DELAY: Duration = Duration::from_millis(1500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpeakerKind {
    Tortie,
    Bird,
    Frr,
    Gobgp,
}

impl SpeakerKind {
    pub const ALL: [SpeakerKind; 4] =
        [SpeakerKind::Tortie, SpeakerKind::Bird, SpeakerKind::Frr, SpeakerKind::Gobgp];
}

pub struct SpeakerProcess {
    kind: SpeakerKind,
    processes: Vec<BenchProcess>,
    _dir: TempDir,
}

impl SpeakerProcess {
    /// Starts a speaker on its host without waiting until it listens.
    pub async fn start(
        kind: SpeakerKind,
        setup: &SpeakerSetup,
        place: &BgpHosts,
    ) -> BenchResult<SpeakerProcess> {
        Ok(SpeakerProcess::start_timed(kind, setup, place).await?.0)
    }

    /// Starts a speaker and also returns the start time.
    pub async fn start_timed(
        kind: SpeakerKind,
        setup: &SpeakerSetup,
        place: &BgpHosts,
    ) -> BenchResult<(SpeakerProcess, WorkStart)> {
        let dir = TempDir::new()?;
        let mut processes = Vec::new();
        let command = match kind {
            SpeakerKind::Tortie => {
                let mut command = on(place, &std::env::current_exe()?);
                let (name, value) = ours::variable(setup);
                command.args(["worker", "bgp-receive"]).env(name, value);
                command
            }
            SpeakerKind::Bird => {
                let file = write(dir.path(), "bird.conf", &config::bird(setup))?;
                let mut command = on(place, Path::new("bird"));
                command.args(["-f", "-c", &file, "-s", &path(dir.path(), "control")]);
                command
            }
            SpeakerKind::Frr => {
                let socket = path(dir.path(), "zserv.api");
                if setup.kernel {
                    let mut zebra = frr(place, dir.path(), "zebra", "")?;
                    zebra.args(["-z", &socket]);
                    // zebra runs as the user frr, which must be able to write here.
                    Command::new("chown").arg("frr").arg(dir.path()).status()?;
                    processes.push(spawn(zebra)?);
                    there(Path::new(&socket)).await?;
                }
                let mut bgpd = frr(place, dir.path(), "bgpd", &config::frr(setup))?;
                match setup.kernel {
                    true => bgpd.args(["-S", "-z", &socket]),
                    false => bgpd.args(["-S", "-Z"]),
                };
                bgpd
            }
            SpeakerKind::Gobgp => {
                let file = write(dir.path(), "gobgp.conf", &config::gobgp(setup))?;
                let mut command = on(place, Path::new("gobgpd"));
                command.args(["-f", &file, "--pprof-disable", "-l", "error"]);
                command
            }
        };
        processes.push(spawn(command)?);
        let daemon = SpeakerProcess { kind, processes, _dir: dir };
        let start = WorkStart::now(&daemon)?;
        if kind == SpeakerKind::Gobgp && setup.own {
            announce_with_gobgp(place).await?;
        }
        Ok((daemon, start))
    }

    /// Starts a whole Tortie node with its datastore and one peer.
    pub async fn node(place: &BgpHosts, peer: Ipv4Addr) -> BenchResult<SpeakerProcess> {
        let node = BenchNode::on(place.0.clone(), None)?;
        let object = json!({
            "metadata": {"name": "feeder"},
            "spec": {"peerIP": peer.to_string(), "asNumber": BENCH_ASN},
        });
        let resource = Resource::from_store(ResourceKind::BGPPeer, object)?;
        let client = StoreClient::connect(&node.store_config()).await?;
        client
            .apply(
                &StoreKey::resource(ResourceKind::BGPPeer, "", "feeder"),
                &StoreValue::Resource(resource),
                None,
            )
            .await?;
        let BenchNode { daemon, store, dir, .. } = node;
        Ok(SpeakerProcess { kind: SpeakerKind::Tortie, processes: vec![daemon, store], _dir: dir })
    }

    /// Returns the CPU time used so far.
    pub fn processor_time(&self) -> io::Result<Duration> {
        self.processes.iter().map(BenchProcess::processor_time).sum()
    }

    /// Returns the resident memory in KiB.
    pub fn resident(&self) -> io::Result<u64> {
        let memory: io::Result<Vec<ProcessMemory>> =
            self.processes.iter().map(BenchProcess::memory).collect();
        Ok(memory?.iter().map(|memory| memory.resident).sum())
    }

    pub fn threads(&self) -> io::Result<usize> {
        let of = |process: &BenchProcess| Ok(fs::read_dir(format!("/proc/{}/task", process.0.id()))?.count());
        self.processes.iter().map(of).sum()
    }

    /// Waits until the speaker is idle.
    pub async fn rest(&self) -> io::Result<()> {
        if self.kind == SpeakerKind::Frr {
            tokio::time::sleep(FRR_UPDATE_DELAY).await;
        }
        let deadline = Instant::now() + IDLE_TIMEOUT;
        let mut before = self.processor_time()?;
        while Instant::now() < deadline {
            tokio::time::sleep(IDLE_CHECK_INTERVAL).await;
            let now = self.processor_time()?;
            if now.saturating_sub(before) < IDLE_CPU_TIME {
                break;
            }
            before = now;
        }
        Ok(())
    }
}

impl Drop for SpeakerProcess {
    fn drop(&mut self) {
        // FRR leaves a directory behind for each process.
        for process in &self.processes {
            for name in ["bgpd", "zebra"] {
                let _ = fs::remove_dir_all(format!("/var/tmp/frr/{name}.{}", process.0.id()));
            }
        }
    }
}

/// Builds a command that runs on the speaker's host. `ip netns exec` calls exec, so the process is the program itself.
pub fn on(place: &BgpHosts, program: &Path) -> Command {
    let mut command = BenchProcess::command("ip");
    command.args(["netns", "exec", place.host()]).arg(program);
    command
}

fn path(dir: &Path, name: &str) -> String {
    dir.join(name).display().to_string()
}

fn write(dir: &Path, name: &str, text: &str) -> io::Result<String> {
    fs::write(dir.join(name), text)?;
    Ok(path(dir, name))
}

fn frr(place: &BgpHosts, dir: &Path, program: &str, config: &str) -> io::Result<Command> {
    let mut command = on(place, &Path::new("/usr/lib/frr").join(program));
    let (file, pid) = (write(dir, &format!("{program}.conf"), config)?, path(dir, &format!("{program}.pid")));
    command.args(["-f", &file, "-i", &pid, "--vty_socket", &path(dir, ""), "-P", "0"]);
    Ok(command)
}

fn spawn(mut command: Command) -> BenchResult<BenchProcess> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    Ok(BenchProcess(child.map_err(|error| format!("{command:?}: {error}"))?))
}

/// Waits until a socket file exists.
async fn there(socket: &Path) -> BenchResult<()> {
    let deadline = Instant::now() + IDLE_TIMEOUT;
    while !socket.exists() {
        if Instant::now() > deadline {
            return Err(format!("nobody listens on {}", socket.display()).into());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Adds the own routes through GoBGP's control port, the only way it accepts them.
async fn announce_with_gobgp(place: &BgpHosts) -> BenchResult<()> {
    for block in OWN_BLOCKS {
        let deadline = Instant::now() + IDLE_TIMEOUT;
        loop {
            let mut command = tokio::process::Command::from(on(place, Path::new("gobgp")));
            command.args(["global", "rib", "add", block, "-a", "ipv4"]).kill_on_drop(true);
            let output = command.output().await?;
            if output.status.success() {
                break;
            }
            if Instant::now() > deadline {
                return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
            }
        }
    }
    Ok(())
}
