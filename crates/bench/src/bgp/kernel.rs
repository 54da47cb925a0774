//! Measures the time until the routes of one peer are in the kernel. For Tortie it runs the complete node daemon with
//! its datastore.

use super::config::{Neighbour, Role, Setup};
use super::daemon::{Daemon, Kind};
use super::feed::Routes;
use super::place::{Place, peer};
use super::report::{Effort, LIMIT, ROUNDS, Report, Start, in_turn};
use super::session::{LONG_HOLD, Peer};
use crate::namespace::{self, Result, check};
use std::fs;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

const SIZES: [usize; 3] = [1_000, 10_000, 100_000];
const FEEDER: usize = 1;
/// GoBGP alone does not program the kernel.
const KINDS: [Kind; 3] = [Kind::Tortie, Kind::Bird, Kind::Frr];

pub fn measure() -> Result<()> {
    let mut report = Report::default();
    let mut first = None;
    for routes in SIZES {
        let feed = Arc::new(Routes::from_the_start(routes).announced_by(peer(FEEDER)));
        let once = |kind| {
            let feed = feed.clone();
            Place::measure(move |place| async move { install(kind, routes, &feed, &place).await })
        };
        let taken = in_turn(&KINDS, ROUNDS, once, |effort: &Effort| effort.time)?;
        report.effort(&format!("{routes} routes"), &taken, &mut first);
    }
    report.print(
        "Routes from one peer until the last is in the kernel (ours: the whole node; FRR: with zebra)",
    );
    Ok(())
}

async fn install(kind: Kind, routes: usize, feed: &[u8], place: &Place) -> Result<Option<Effort>> {
    let feeder = Neighbour { address: peer(FEEDER), role: Role::Client };
    let daemon = match kind {
        Kind::Tortie => Daemon::node(place, feeder.address).await?,
        _ => Daemon::start(kind, &Setup { peers: vec![feeder], kernel: true, own: false }, place).await?,
    };
    let feeder = Peer::connect(feeder.address, LONG_HOLD).await?;
    daemon.rest().await?;
    let (place, go) = (place.clone(), Arc::new(Barrier::new(2)));
    let gone = go.clone();
    let watch = std::thread::spawn(move || full(&place, routes, &gone));
    go.wait();
    let start = Start::now(&daemon)?;
    let sent = tokio::time::timeout_at(start.deadline().into(), feeder.send(feed)).await;
    let end = watch.join().map_err(|_| "the watch ended badly")??;
    match (sent, end) {
        (Ok(sent), Some(end)) => {
            sent?;
            Ok(Some(start.effort_until(end, &daemon)?))
        }
        _ => Ok(None),
    }
}

/// Returns the time when the main table of the speaker's host has gained `routes` routes. Reading the count is slow
/// with many routes, so it takes at most a tenth of the time.
fn full(place: &Place, routes: usize, start: &Barrier) -> Result<Option<Instant>> {
    let before = namespace::enter(&place.0.path(0)).and_then(|()| main_table());
    start.wait();
    let (enough, deadline) = (before? + routes, Instant::now() + LIMIT);
    loop {
        check()?;
        let asked = Instant::now();
        let there = main_table()?;
        let now = Instant::now();
        if there >= enough {
            return Ok(Some(now));
        }
        if now > deadline {
            return Ok(None);
        }
        std::thread::sleep(((now - asked) * 9).max(Duration::from_millis(1)));
    }
}

fn main_table() -> Result<usize> {
    let text = fs::read_to_string("/proc/thread-self/net/fib_triestat")?;
    let lines = text.lines().skip_while(|line| !line.starts_with("Main:"));
    let prefixes = lines.filter_map(|line| line.trim().strip_prefix("Prefixes:")).next();
    Ok(prefixes.ok_or("the kernel does not count its routes")?.trim().parse()?)
}
