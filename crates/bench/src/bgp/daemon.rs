//! The four speakers, each a process with a configuration of its own, gone when dropped.

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

/// Between looks at whether a process has come to rest.
const LOOK: Duration = Duration::from_millis(200);
/// A process that uses less than this between looks is at rest.
const REST: Duration = Duration::from_millis(4);
const PATIENCE: Duration = Duration::from_secs(5);

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
    processes: Vec<Process>,
    _dir: TempDir,
}

impl Daemon {
    /// Starts a speaker on its host. It may not listen yet.
    pub async fn start(kind: Kind, setup: &Setup, place: &Place) -> Result<Daemon> {
        Ok(Daemon::start_timed(kind, setup, place).await?.0)
    }

    /// Also says when it began.
    pub async fn start_timed(kind: Kind, setup: &Setup, place: &Place) -> Result<(Daemon, Start)> {
        let dir = TempDir::new()?;
        let commands = match kind {
            Kind::Tortie => {
                let mut command = on(place, &std::env::current_exe()?);
                let (name, value) = ours::variable(setup);
                command.arg("bgp").env(name, value);
                vec![command]
            }
            Kind::Bird => {
                let file = write(dir.path(), "bird.conf", &config::bird(setup))?;
                let mut command = on(place, Path::new("bird"));
                command.args(["-f", "-c", &file, "-s", &path(dir.path(), "control")]);
                vec![command]
            }
            Kind::Frr => frr(setup, place, dir.path())?,
            Kind::Gobgp => {
                let file = write(dir.path(), "gobgp.conf", &config::gobgp(setup))?;
                let mut command = on(place, Path::new("gobgpd"));
                command.args(["-f", &file, "--pprof-disable", "-l", "error"]);
                vec![command]
            }
        };
        let mut daemon = Daemon { processes: Vec::new(), _dir: dir };
        for mut command in commands {
            let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
            daemon.processes.push(Process(child.map_err(|error| format!("{command:?}: {error}"))?));
        }
        let start = Start::now(&daemon)?;
        if kind == Kind::Gobgp && setup.own {
            announce_with_gobgp(place).await?;
        }
        Ok((daemon, start))
    }

    /// The daemon of a node, with its store, and one peer.
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
        Ok(Daemon { processes: vec![daemon, store], _dir: dir })
    }

    /// Processor time so far.
    pub fn processor_time(&self) -> io::Result<Duration> {
        self.processes.iter().map(Process::processor_time).sum()
    }

    /// Resident memory in KiB.
    pub fn resident(&self) -> io::Result<u64> {
        let memory: io::Result<Vec<Memory>> = self.processes.iter().map(Process::memory).collect();
        Ok(memory?.iter().map(|memory| memory.resident).sum())
    }

    pub fn threads(&self) -> io::Result<usize> {
        let of = |process: &Process| Ok(fs::read_dir(format!("/proc/{}/task", process.0.id()))?.count());
        self.processes.iter().map(of).sum()
    }

    /// Waits until it has nothing more to do.
    pub async fn rest(&self) -> io::Result<()> {
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
        // FRR keeps a directory for each process it ever was.
        for process in &self.processes {
            for name in ["bgpd", "zebra"] {
                let _ = fs::remove_dir_all(format!("/var/tmp/frr/{name}.{}", process.0.id()));
            }
        }
    }
}

/// A command that runs on the speaker's host, as the process that is started.
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

/// With zebra only where routes go into the kernel.
fn frr(setup: &Setup, place: &Place, dir: &Path) -> io::Result<Vec<Command>> {
    let mut commands = Vec::new();
    let mut add = |program: &str, file: &str, more: &[&str]| {
        let mut command = on(place, &Path::new("/usr/lib/frr").join(program));
        command.args(["-S", "-f", file, "-i", &path(dir, &format!("{program}.pid"))]);
        command.args(["--vty_socket", &path(dir, ""), "-P", "0"]).args(more);
        commands.push(command);
    };
    let socket = path(dir, "zserv.api");
    if setup.kernel {
        add("zebra", &write(dir, "zebra.conf", "")?, &["-z", &socket]);
    }
    let more: &[&str] = if setup.kernel { &["-z", &socket] } else { &["-Z"] };
    add("bgpd", &write(dir, "bgpd.conf", &config::frr(setup))?, more);
    Ok(commands)
}

/// It takes its own routes only by its control port.
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
