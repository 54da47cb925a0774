//! Runs Tortie's speaker as a process: this program, started again.

use super::config::{Neighbour, OWN, Role, Setup};
use super::feed::MARKER;
use super::place::{ASN, SPEAKER};
use crate::Outcome;
use crate::namespace::Result;
use std::sync::Arc;
use tortie_bgp::filter::{Filter, Match, PrefixMatch, PrefixOperator, Rule, Verdict};
use tortie_bgp::{Attrs, Config, PeerConfig, Sockets, Speaker};

/// Environment variable that makes this process a speaker and describes its peers.
const SETUP: &str = "TORTIE_BENCH_SPEAKER";

/// Encodes the setup as an environment variable of the new process.
pub fn variable(setup: &Setup) -> (&'static str, String) {
    let peers: Vec<String> =
        setup.peers.iter().map(|peer| format!("{}={:?}", peer.address, peer.role)).collect();
    (SETUP, format!("{}:{}", setup.own, peers.join(",")))
}

pub fn is_wanted() -> bool {
    std::env::var_os(SETUP).is_some()
}

fn setup(text: &str) -> Result<Setup> {
    let (own, list) = text.split_once(':').ok_or("a setup is OWN:PEERS")?;
    let mut peers = Vec::new();
    for peer in list.split(',') {
        let (address, role) = peer.split_once('=').ok_or("a peer is ADDRESS=ROLE")?;
        let roles = [Role::Mesh, Role::Client, Role::Observer];
        let role = roles.into_iter().find(|known| format!("{known:?}") == role).ok_or("no such role")?;
        peers.push(Neighbour { address: address.parse()?, role });
    }
    Ok(Setup { peers, own: own.parse()?, kernel: false })
}

/// Runs the speaker until the process is killed.
pub fn speak() -> Outcome {
    let setup = setup(&std::env::var(SETUP)?).map_err(crate::plain)?;
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
    for Neighbour { address, role } in setup.peers {
        let mut session = PeerConfig::new(address.into(), ASN);
        session.passive = true;
        session.reflect = (role != Role::Mesh).then_some(SPEAKER);
        if role == Role::Observer {
            session.export = only_marker.clone();
        }
        config.peers.insert(address.to_string(), session);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let (speaker, mut routes) = Speaker::start(config, Sockets::here(), false).await?;
        if setup.own {
            for block in OWN {
                speaker.originate(block.parse()?, Attrs::local()).await?;
            }
        }
        speaker.local_complete().await?;
        while routes.next().await.is_some() {}
        Ok(())
    })
}
