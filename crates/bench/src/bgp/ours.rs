//! Runs Tortie's speaker as a process: this program, started again.

use super::config::{BenchNeighbour, NeighbourRole, OWN_BLOCKS, SpeakerSetup};
use super::feed::MARKER_PREFIX;
use super::place::{BENCH_ASN, SPEAKER_ADDRESS};
use crate::SuiteResult;
use crate::namespace::BenchResult;
use std::sync::Arc;
use tortie_bgp::filter::{
    FilterPrefixOperator, FilterVerdict, PrefixSetMatch, RouteFilter, RouteFilterRule, RouteMatch,
};
use tortie_bgp::{PeerConfig, RouteAttrs, SocketFactory, Speaker, SpeakerConfig};

/// Environment variable that makes this process a speaker and describes its peers.
const SPEAKER_ENV: &str = "TORTIE_BENCH_SPEAKER";

/// Encodes the setup as an environment variable of the new process.
pub fn variable(setup: &SpeakerSetup) -> (&'static str, String) {
    let peers: Vec<String> =
        setup.peers.iter().map(|peer| format!("{}={:?}", peer.address, peer.role)).collect();
    (SPEAKER_ENV, format!("{}:{}", setup.own, peers.join(",")))
}

pub fn is_wanted() -> bool {
    std::env::var_os(SPEAKER_ENV).is_some()
}

fn setup(text: &str) -> BenchResult<SpeakerSetup> {
    let (own, list) = text.split_once(':').ok_or("a setup is OWN:PEERS")?;
    let mut peers = Vec::new();
    for peer in list.split(',') {
        let (address, role) = peer.split_once('=').ok_or("a peer is ADDRESS=ROLE")?;
        let roles = [NeighbourRole::Mesh, NeighbourRole::Client, NeighbourRole::Observer];
        let role = roles.into_iter().find(|known| format!("{known:?}") == role).ok_or("no such role")?;
        peers.push(BenchNeighbour { address: address.parse()?, role });
    }
    Ok(SpeakerSetup { peers, own: own.parse()?, kernel: false })
}

/// Runs the speaker until the process is killed.
pub fn speak() -> SuiteResult {
    let setup = setup(&std::env::var(SPEAKER_ENV)?).map_err(crate::plain)?;
    let mut config = SpeakerConfig::new(BENCH_ASN, SPEAKER_ADDRESS);
    config.listen = vec![(SPEAKER_ADDRESS, 179).into()];
    let marker = PrefixSetMatch {
        operator: FilterPrefixOperator::Equal,
        set: std::iter::once(MARKER_PREFIX.parse()?).collect(),
        length: None,
    };
    let rule = RouteFilterRule {
        when: RouteMatch { prefix: Some(marker), ..RouteMatch::default() },
        verdict: Some(FilterVerdict::Accept),
        ..RouteFilterRule::default()
    };
    let only_marker = Arc::new(RouteFilter { rules: vec![rule], default: FilterVerdict::Reject });
    for BenchNeighbour { address, role } in setup.peers {
        let mut session = PeerConfig::new(address.into(), BENCH_ASN);
        session.passive = true;
        session.reflect = (role != NeighbourRole::Mesh).then_some(SPEAKER_ADDRESS);
        if role == NeighbourRole::Observer {
            session.export = only_marker.clone();
        }
        config.peers.insert(address.to_string(), session);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let (speaker, mut routes) = Speaker::start(config, SocketFactory::here(), false).await?;
        if setup.own {
            for block in OWN_BLOCKS {
                speaker.originate(block.parse()?, RouteAttrs::local()).await?;
            }
        }
        speaker.local_complete().await?;
        while routes.next().await.is_some() {}
        Ok(())
    })
}
