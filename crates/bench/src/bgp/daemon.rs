//! The four speakers, each a process with a configuration of its own, gone when dropped.

use super::generator::{ASN, MARKER, SPEAKER};
use crate::Outcome;
use crate::namespace::Result;
use crate::process::Process;
use std::fs;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use tempfile::TempDir;
use tortie_bgp::filter::{Filter, Match, PrefixMatch, PrefixOperator, Rule, Verdict};
use tortie_bgp::{Config, PeerConfig, Sockets, Speaker};

const CLUSTER: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
/// Says to this program, started again, that it is our own speaker, and which peers it has.
const PEERS: &str = "TORTIE_BENCH_PEERS";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Tortie,
    Bird,
    Frr,
    Gobgp,
}

/// Who the peers are: all of our AS, all clients of the speaker as a reflector.
#[derive(Clone, Copy, Debug)]
pub enum Plan {
    /// A feeder and an observer that is told only the marker.
    Receive,
    /// A feeder and clients that are told everything.
    Reflect { clients: u8 },
}

impl Plan {
    /// The last byte of each peer's address, and whether it is told only the marker.
    fn peers(self) -> Vec<(u8, bool)> {
        match self {
            Plan::Receive => vec![(2, true), (3, true)],
            Plan::Reflect { clients } => {
                std::iter::once((2, false)).chain((0..clients).map(|client| (10 + client, false))).collect()
            }
        }
    }
}

pub struct Daemon {
    pub process: Process,
    _dir: TempDir,
}

impl Daemon {
    pub fn start(kind: Kind, plan: Plan) -> Result<Daemon> {
        let dir = TempDir::new()?;
        let path = |name: &str| dir.path().join(name).display().to_string();
        let config = path("config");
        let peers = plan.peers();
        let command = match kind {
            Kind::Tortie => {
                let mut command = Process::command(std::env::current_exe()?);
                let list: Vec<String> =
                    peers.iter().map(|(last, marked)| format!("{last}:{marked}")).collect();
                command.arg("bgp").env(PEERS, list.join(","));
                command
            }
            Kind::Bird => {
                fs::write(&config, bird(&peers))?;
                let mut command = Process::command("bird");
                command.args(["-f", "-c", &config, "-s", &path("control")]);
                command
            }
            Kind::Frr => {
                fs::write(&config, frr(&peers))?;
                let mut command = Process::command("/usr/lib/frr/bgpd");
                command.args(["-Z", "-S", "-f", &config, "-i", &path("pid"), "--vty_socket", &path("")]);
                command.args(["-P", "0"]);
                command
            }
            Kind::Gobgp => {
                fs::write(&config, gobgp(&peers))?;
                let mut command = Process::command("gobgpd");
                command.args(["-f", &config, "--pprof-disable", "-l", "error"]);
                command
            }
        };
        Daemon::spawn(command, dir)
    }

    fn spawn(mut command: Command, dir: TempDir) -> Result<Daemon> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.map_err(|error| format!("{command:?}: {error}"))?;
        Ok(Daemon { process: Process(child), _dir: dir })
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // FRR keeps a directory for each process it ever was.
        let _ = fs::remove_dir_all(format!("/var/tmp/frr/bgpd.{}", self.process.0.id()));
    }
}

fn bird(peers: &[(u8, bool)]) -> String {
    let mut config = format!("router id {SPEAKER};\nprotocol device {{}}\nprotocol direct {{ ipv4; }}\n");
    for (last, marked) in peers {
        let export = if *marked { format!("where net = {MARKER}") } else { "all".to_owned() };
        config += &format!(
            "protocol bgp peer{last} {{ local {SPEAKER} as {ASN}; neighbor 10.99.0.{last} as {ASN}; passive on;
             rr client; ipv4 {{ import all; export {export}; }}; }}\n"
        );
    }
    config
}

fn frr(peers: &[(u8, bool)]) -> String {
    let mut config = format!("router bgp {ASN}\n bgp router-id {SPEAKER}\n");
    let mut family = " address-family ipv4 unicast\n".to_owned();
    for (last, marked) in peers {
        config += &format!(" neighbor 10.99.0.{last} remote-as {ASN}\n neighbor 10.99.0.{last} passive\n");
        family += &format!("  neighbor 10.99.0.{last} route-reflector-client\n");
        if *marked {
            family += &format!("  neighbor 10.99.0.{last} prefix-list marker out\n");
        }
    }
    config + &family + &format!(" exit-address-family\nip prefix-list marker seq 5 permit {MARKER}\n")
}

fn gobgp(peers: &[(u8, bool)]) -> String {
    let mut config = format!("[global.config]\nas = {ASN}\nrouter-id = \"{SPEAKER}\"\n");
    if peers.iter().any(|(_, marked)| *marked) {
        config += &format!(
            "[global.apply-policy.config]
            export-policy-list = [\"marker\"]
            default-export-policy = \"reject-route\"
            [[defined-sets.prefix-sets]]
            prefix-set-name = \"marker\"
            [[defined-sets.prefix-sets.prefix-list]]
            ip-prefix = \"{MARKER}\"
            [[policy-definitions]]
            name = \"marker\"
            [[policy-definitions.statements]]
            [policy-definitions.statements.conditions.match-prefix-set]
            prefix-set = \"marker\"
            [policy-definitions.statements.actions]
            route-disposition = \"accept-route\"\n"
        );
    }
    for (last, _) in peers {
        config += &format!(
            "[[neighbors]]
            [neighbors.config]
            neighbor-address = \"10.99.0.{last}\"
            peer-as = {ASN}
            [neighbors.transport.config]
            passive-mode = true
            [neighbors.route-reflector.config]
            route-reflector-client = true
            route-reflector-cluster-id = \"{CLUSTER}\"\n"
        );
    }
    config
}

/// Whether this process is to be a speaker.
pub fn is_speaker() -> bool {
    std::env::var_os(PEERS).is_some()
}

/// This process as our own speaker, until it is killed.
pub fn speak() -> Outcome {
    let mut config = Config::new(ASN, SPEAKER);
    config.listen = vec![(SPEAKER, 179).into()];
    let marker = PrefixMatch {
        operator: PrefixOperator::Equal,
        set: std::iter::once(MARKER.parse()?).collect(),
        length: None,
    };
    let rule = Rule {
        when: Match { prefix: Some(marker), ..Match::default() },
        verdict: Some(Verdict::Accept),
        ..Rule::default()
    };
    let only_marker = Arc::new(Filter { rules: vec![rule], default: Verdict::Reject });
    for peer in std::env::var(PEERS)?.split(',') {
        let (last, marked) = peer.split_once(':').ok_or("a peer is NUMBER:MARKED")?;
        let address = Ipv4Addr::new(10, 99, 0, last.parse()?);
        let mut session = PeerConfig::new(address.into(), ASN);
        session.passive = true;
        session.reflect = Some(CLUSTER);
        if marked.parse()? {
            session.export = only_marker.clone();
        }
        config.peers.insert(format!("peer{last}"), session);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let (speaker, mut routes) = Speaker::start(config, Sockets::here(), false).await?;
        speaker.local_complete()?;
        while routes.next().await.is_some() {}
        Ok(())
    })
}
