//! Our speaker, BIRD 2, FRR and GoBGP fed the same by the same generator: how fast routes are taken in, how much memory
//! they need, how fast they are reflected.
//!
//! All of it runs in a network namespace of its own. Every speaker is a process of its own; a marker route, sent last and the only one passed on, says that all before it was done.

mod daemon;
mod generator;

use crate::measure::{growth, table, times};
use crate::namespace::{self, Namespaces, Result, check};
use crate::{Outcome, plain};
use daemon::{Daemon, Kind, Plan};
use generator::{Feed, Listener};
use std::time::{Duration, Instant};

const KINDS: [Kind; 4] = [Kind::Tortie, Kind::Bird, Kind::Frr, Kind::Gobgp];
const HEADER: [&str; 5] = ["", "tortie", "BIRD 2", "FRR", "GoBGP"];
const SIZES: [usize; 3] = [10_000, 100_000, 1_000_000];
const REFLECTED: [usize; 2] = [10_000, 100_000];
const CLIENTS: u8 = 50;
/// Nothing that is worth measuring takes longer.
const LIMIT: Duration = Duration::from_secs(600);

pub fn run() -> Outcome {
    match daemon::is_speaker() {
        true => daemon::speak(),
        false => inside().map_err(plain),
    }
}

/// Measures in a namespace where every address of 10.99.0.0/16 is our own.
fn inside() -> Result<()> {
    let namespaces = Namespaces::new(1)?;
    namespace::ip(Some(namespaces.name(0)), ["link set lo up", "addr add 10.99.0.1/16 dev lo"])?;
    let path = namespaces.path(0);
    // What a thread starts, threads and processes, is where the thread is.
    let measurement = std::thread::spawn(move || {
        namespace::enter(&path)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(async {
            receive().await?;
            reflect().await
        })
    });
    measurement.join().map_err(|_| "the measurement ended badly")?
}

struct Taken {
    time: Duration,
    processor: Duration,
    bytes_per_route: f64,
}

async fn receive() -> Result<()> {
    let mut rows = Vec::new();
    let mut smallest: Option<Vec<f64>> = None;
    for routes in SIZES {
        let feed = Feed::new(routes);
        let mut taken = Vec::new();
        for kind in KINDS {
            check()?;
            taken.push(take_in(kind, routes, &feed).await.map_err(|error| format!("{kind:?}: {error}"))?);
        }
        let cell = |value: &dyn Fn(&Taken) -> String| taken.iter().map(value).collect::<Vec<_>>();
        for (what, cells) in [
            ("time", cell(&|taken| format!("{:.3} s", taken.time.as_secs_f64()))),
            ("processor time", cell(&|taken| format!("{:.3} s", taken.processor.as_secs_f64()))),
            ("memory a route", cell(&|taken| format!("{:.0} B", taken.bytes_per_route))),
        ] {
            rows.push([vec![format!("{routes} routes: {what}")], cells].concat());
        }
        let seconds: Vec<f64> = taken.iter().map(|taken| taken.time.as_secs_f64()).collect();
        let ours = seconds.first().copied().unwrap_or_default();
        let ratios = seconds.iter().map(|seconds| times(seconds / ours)).collect();
        rows.push([vec![format!("{routes} routes: time against ours")], ratios].concat());
        let first = smallest.get_or_insert_with(|| seconds.clone());
        let grown = seconds.iter().zip(first).map(|(now, first)| growth(*now, *first)).collect();
        rows.push([vec![format!("{routes} routes: time against {}", SIZES[0])], grown].concat());
    }
    table(
        "Routes taken in from one peer, ten to a set of attributes, until the last is in the table (one run)",
        &HEADER,
        &rows,
    );
    Ok(())
}

async fn take_in(kind: Kind, routes: usize, feed: &Feed) -> Result<Taken> {
    let daemon = Daemon::start(kind, Plan::Receive)?;
    let mut observer = Listener::connect(3).await?;
    let mut feeder = feed.connect(2).await?;
    // The sessions' own start-up is not part of it.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (memory, processor) = (daemon.process.memory()?.resident, daemon.process.processor_time()?);
    let start = Instant::now();
    feeder.send().await?;
    observer.until(1, LIMIT).await?;
    let time = start.elapsed();
    let processor = daemon.process.processor_time()?.saturating_sub(processor);
    // What was taken only for the work is given back, or not.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let grown = (daemon.process.memory()?.resident).saturating_sub(memory);
    Ok(Taken { time, processor, bytes_per_route: grown as f64 * 1024.0 / routes as f64 })
}

async fn reflect() -> Result<()> {
    let mut rows = Vec::new();
    for routes in REFLECTED {
        let feed = Feed::new(routes);
        let mut cells: [Vec<String>; 3] = Default::default();
        let mut ours = None;
        for kind in KINDS {
            check()?;
            let reflected =
                reflect_one(kind, routes, &feed).await.map_err(|error| format!("{kind:?}: {error}"));
            let (time, processor) = reflected?;
            let base = *ours.get_or_insert(time.as_secs_f64());
            cells[0].push(format!("{:.2} s", time.as_secs_f64()));
            cells[1].push(format!("{:.2} s", processor.as_secs_f64()));
            cells[2].push(times(time.as_secs_f64() / base));
        }
        for (what, cells) in
            ["until the last client has all", "processor time", "time against ours"].iter().zip(cells)
        {
            rows.push([vec![format!("{routes} routes to {CLIENTS} clients: {what}")], cells].concat());
        }
    }
    table(
        "Routes of one client reflected to others (one run; the clients share the two processors with the reflector)",
        &HEADER,
        &rows,
    );
    Ok(())
}

async fn reflect_one(kind: Kind, routes: usize, feed: &Feed) -> Result<(Duration, Duration)> {
    let daemon = Daemon::start(kind, Plan::Reflect { clients: CLIENTS })?;
    let mut clients = Vec::new();
    for client in 0..CLIENTS {
        clients.push(Listener::connect(10 + client).await?);
    }
    let mut feeder = feed.connect(2).await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let processor = daemon.process.processor_time()?;
    let start = Instant::now();
    let sender =
        tokio::spawn(async move { feeder.send().await.map(|()| feeder).map_err(|error| error.to_string()) });
    for client in &mut clients {
        client.until(routes + 1, LIMIT).await?;
    }
    let time = start.elapsed();
    let _feeder = sender.await??;
    Ok((time, daemon.process.processor_time()?.saturating_sub(processor)))
}
