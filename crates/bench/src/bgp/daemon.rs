//! Runs the four BGP speakers as processes, killed when dropped.

use super::config::{self, OWN, Setup};
use super::ours;
use super::place::{ASN, Place};
use super::report::Start;
use crate::namespace::Result;
use crate::node::Node;
use crate::process::{Memory, Process};
use serde_json::json;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tortie_model::{Key, Kind as ResourceKind, Resource, Value};
use tortie_store::Client;

/// Interval between checks whether a process is idle.
const LOOK: Duration = Duration::from_millis(200);
/// A process that uses less CPU time than this in one interval counts as idle.
const REST: Duration = Duration::from_millis(4);
const PATIENCE: Duration = Duration::from_secs(10);
/// FRR waits for about a second before it sends routes to a new peer.
const GATHERING: Duration = Duration::from_millis(1500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Tortie,
    Bird,
    Frr,
    Gobgp,
}

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::Tortie, Kind::Bird, Kind::Frr, Kind::Gobgp];
}

pub struct Daemon {
    kind: Kind,
    processes: Vec<Process>,
    _dir: TempDir,
}

impl Daemon {
    /// Starts a speaker on its host without waiting until it listens.
    pub async fn start(kind: Kind, setup: &Setup, place: &Place) -> Result<Daemon> {
        Ok(Daemon::start_timed(kind, setup, place).await?.0)
    }

    /// Starts a speaker and also returns the start time.
    pub async fn start_timed(kind: Kind, setup: &Setup, place: &Place) -> Result<(Daemon, Start)> {
        let dir = TempDir::new()?;
        let mut processes = Vec::new();
        let command = match kind {
            Kind::Tortie => {
                let mut command = on(place, &std::env::current_exe()?);
                let (name, value) = ours::variable(setup);
                command.arg("bgp").env(name, value);
                command
            }
            Kind::Bird => {
                let file = write(dir.path(), "bird.conf", &config::bird(setup))?;
                let mut command = on(place, Path::new("bird"));
                command.args(["-f", "-c", &file, "-s", &path(dir.path(), "control")]);
                command
            }
            Kind::Frr => {
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
            Kind::Gobgp => {
                let file = write(dir.path(), "gobgp.conf", &config::gobgp(setup))?;
                let mut command = on(place, Path::new("gobgpd"));
                command.args(["-f", &file, "--pprof-disable", "-l", "error"]);
                command
            }
        };
        processes.push(spawn(command)?);
        let daemon = Daemon { kind, processes, _dir: dir };
        let start = Start::now(&daemon)?;
        if kind == Kind::Gobgp && setup.own {
            announce_with_gobgp(place).await?;
        }
        Ok((daemon, start))
    }

    /// Starts a whole Tortie node with its datastore and one peer.
    pub async fn node(place: &Place, peer: Ipv4Addr) -> Result<Daemon> {
        let node = Node::on(place.0.clone(), None)?;
        let object = json!({
            "metadata": {"name": "feeder"},
            "spec": {"peerIP": peer.to_string(), "asNumber": ASN},
        });
        let resource = Resource::from_store(ResourceKind::BGPPeer, object)?;
        let client = Client::connect(&node.store_config()).await?;
        client
            .apply(&Key::resource(ResourceKind::BGPPeer, "", "feeder"), &Value::Resource(resource), None)
            .await?;
        let Node { daemon, store, dir, .. } = node;
        Ok(Daemon { kind: Kind::Tortie, processes: vec![daemon, store], _dir: dir })
    }

    /// Returns the CPU time used so far.
    pub fn processor_time(&self) -> io::Result<Duration> {
        self.processes.iter().map(Process::processor_time).sum()
    }

    /// Returns the resident memory in KiB.
    pub fn resident(&self) -> io::Result<u64> {
        let memory: io::Result<Vec<Memory>> = self.processes.iter().map(Process::memory).collect();
        Ok(memory?.iter().map(|memory| memory.resident).sum())
    }

    pub fn threads(&self) -> io::Result<usize> {
        let of = |process: &Process| Ok(fs::read_dir(format!("/proc/{}/task", process.0.id()))?.count());
        self.processes.iter().map(of).sum()
    }

    /// Waits until the speaker is idle.
    pub async fn rest(&self) -> io::Result<()> {
        if self.kind == Kind::Frr {
            tokio::time::sleep(GATHERING).await;
        }
        let deadline = Instant::now() + PATIENCE;
        let mut before = self.processor_time()?;
        while Instant::now() < deadline {
            tokio::time::sleep(LOOK).await;
            let now = self.processor_time()?;
            if now.saturating_sub(before) < REST {
                break;
            }
            before = now;
        }
        Ok(())
    }
}

impl Drop for Daemon {
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
pub fn on(place: &Place, program: &Path) -> Command {
    let mut command = Process::command("ip");
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

fn frr(place: &Place, dir: &Path, program: &str, config: &str) -> io::Result<Command> {
    let mut command = on(place, &Path::new("/usr/lib/frr").join(program));
    let (file, pid) = (write(dir, &format!("{program}.conf"), config)?, path(dir, &format!("{program}.pid")));
    command.args(["-f", &file, "-i", &pid, "--vty_socket", &path(dir, ""), "-P", "0"]);
    Ok(command)
}

fn spawn(mut command: Command) -> Result<Process> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    Ok(Process(child.map_err(|error| format!("{command:?}: {error}"))?))
}

/// Waits until a socket file exists.
async fn there(socket: &Path) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !socket.exists() {
        if Instant::now() > deadline {
            return Err(format!("nobody listens on {}", socket.display()).into());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Adds the own routes through GoBGP's control port, the only way it accepts them.
async fn announce_with_gobgp(place: &Place) -> Result<()> {
    for block in OWN {
        let deadline = Instant::now() + PATIENCE;
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
