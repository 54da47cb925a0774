//! Measures one node in a full mesh: every other node connects, announces two blocks and receives the node's own.
//!
//! Mesh peers cannot observe the node's table, so one additional peer is a route reflector client that receives every
//! route.

use super::config::{BenchNeighbour, NeighbourRole, OWN_BLOCKS, SpeakerSetup};
use super::daemon::{SpeakerKind, SpeakerProcess};
use super::feed::GeneratedRoutes;
use super::place::{BgpHosts, peer};
use super::report::{FigureCell, SpeakerReport, WorkCost, cells, count, in_turn, seconds};
use super::session::BenchPeer;
use crate::namespace::BenchResult;
use std::time::Duration;
use tokio::task::JoinSet;

const NODE_COUNTS: [usize; 3] = [5, 50, 500];
const BLOCKS_PER_NODE: usize = 2;
/// Hold time in seconds. Each side sends a keepalive every third of it.
const HOLD_TIME: u16 = 15;
const IDLE_PERIOD: Duration = Duration::from_secs(HOLD_TIME as u64 / 3);

struct MeshFigures {
    effort: WorkCost,
    resident: f64,
    threads: usize,
    /// CPU time while idle; measured only with the largest number of nodes.
    idle: Option<Duration>,
}

pub fn measure() -> BenchResult<()> {
    let mut report = SpeakerReport::default();
    let (mut first, mut fewest) = (None, None);
    for nodes in NODE_COUNTS {
        let most = nodes == NODE_COUNTS[NODE_COUNTS.len() - 1];
        let once =
            |kind| BgpHosts::measure(move |place| async move { join(kind, nodes, most, &place).await });
        let taken = in_turn(&SpeakerKind::ALL, 1, once, |taken: &MeshFigures| taken.effort.time)?;
        let efforts: Vec<_> = taken.iter().map(|taken| taken.as_ref().map(|taken| taken.effort)).collect();
        report.effort(&format!("{nodes} nodes: from its start until all know all"), &efforts, &mut first);
        let resident = cells(&taken, |taken| taken.resident);
        report.line("- resident", &resident, |value| format!("{:.1} MiB", value / 1024.0));
        let (few, residents) = fewest.get_or_insert((nodes, resident.clone()));
        if nodes > *few {
            let more = (nodes - *few) as f64;
            let each = |(now, few): (&FigureCell, &FigureCell)| match (now, few) {
                (FigureCell::Is(now), FigureCell::Is(few)) => FigureCell::Is((now - few) / more),
                _ => FigureCell::Absent,
            };
            let each = resident.iter().zip(residents.iter()).map(each).collect();
            report.line("- memory for each more", &each, |value| format!("{value:.1} KiB"));
        }
        if most {
            let idle = cells(&taken, |taken| taken.idle.unwrap_or_default().as_secs_f64());
            report.line(&format!("- processor time idle, {} s", IDLE_PERIOD.as_secs()), &idle, seconds);
            report.line("- threads", &cells(&taken, |taken| taken.threads as f64), count);
        }
    }
    report.print(&format!("A full mesh with {BLOCKS_PER_NODE} blocks a node, as one node sees it"));
    Ok(())
}

async fn join(
    kind: SpeakerKind,
    nodes: usize,
    idle: bool,
    place: &BgpHosts,
) -> BenchResult<Option<MeshFigures>> {
    let (others, observer) = (1..nodes, peer(nodes));
    let mesh =
        others.clone().map(|number| BenchNeighbour { address: peer(number), role: NeighbourRole::Mesh });
    let observing = BenchNeighbour { address: observer, role: NeighbourRole::Client };
    let setup = SpeakerSetup { peers: mesh.chain([observing]).collect(), own: true, kernel: false };
    let feeds: Vec<_> = others.map(|number| (peer(number), blocks(number))).collect();
    let (daemon, start) = SpeakerProcess::start_timed(kind, &setup, place).await?;
    let mut joining = JoinSet::new();
    for (address, feed) in feeds {
        joining.spawn(async move {
            let peer = BenchPeer::connect(address, HOLD_TIME).await?;
            peer.send(&feed).await?;
            BenchResult::Ok(peer)
        });
    }
    let observer = BenchPeer::connect(observer, HOLD_TIME).await?;
    let mut peers = Vec::new();
    while let Some(joined) = joining.join_next().await {
        peers.push(joined??);
    }
    for peer in &peers {
        if !peer.announced(OWN_BLOCKS.len(), start.deadline()).await {
            return Ok(None);
        }
    }
    if !observer.announced(OWN_BLOCKS.len() + BLOCKS_PER_NODE * peers.len(), start.deadline()).await {
        return Ok(None);
    }
    let effort = start.effort(&daemon)?;
    daemon.rest().await?;
    let resident = daemon.resident()? as f64;
    let mut taken = MeshFigures { effort, resident, threads: daemon.threads()?, idle: None };
    if idle {
        let before = daemon.processor_time()?;
        tokio::time::sleep(IDLE_PERIOD).await;
        taken.idle = Some(daemon.processor_time()?.saturating_sub(before));
    }
    Ok(Some(taken))
}

fn blocks(number: usize) -> Vec<u8> {
    GeneratedRoutes { first: number * BLOCKS_PER_NODE, count: BLOCKS_PER_NODE, bits: 26 }
        .announced_by(peer(number))
}
