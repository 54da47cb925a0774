//! From an argument list to a running node, in the order in which things must happen.

use crate::cni::{self, Wiring};
use crate::engine::Engine;
use crate::journal::{Journal, Phase};
use crate::node_status::NodeStatuses;
use crate::options::NodeArgs;
use crate::startup::{self, StartupError, Variables};
use crate::state::State;
use crate::{bgp, files, http, queries, settings_file, status};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tortie_compute::{BgpEnvironment, Compute, Environment};
use tortie_dataplane::Netns;
use tortie_ipam::{Allocator, Owner};
use tortie_store::{Client, Config, Resources};

const RETRY: Duration = Duration::from_secs(1);
/// Between collections of what died without a word.
const COLLECT: Duration = Duration::from_secs(10);
/// Between looks at the host's addresses, unless AUTODETECT_POLL_INTERVAL says otherwise.
const ADDRESSES: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Startup(#[from] StartupError),
    #[error(transparent)]
    Store(#[from] tortie_store::Error),
    #[error(transparent)]
    Dataplane(#[from] tortie_dataplane::Error),
    #[error("{what}: {error}")]
    Io { what: String, error: std::io::Error },
}

/// Runs until SIGTERM or SIGINT. Nothing is taken away at the end: workloads keep their network.
pub async fn run(args: NodeArgs, version: &str) -> Result<(), RunError> {
    let io = |what: &str| {
        let what = what.to_owned();
        move |error| RunError::Io { what, error }
    };
    let mut terminate = signal(SignalKind::terminate()).map_err(io("signals"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(io("signals"))?;
    let variables = Variables::of_process();
    for dir in [&args.state_dir, &args.run_dir, args.calico_dir()] {
        std::fs::create_dir_all(dir).map_err(io(&dir.display().to_string()))?;
    }
    let name = startup::node_name(&variables, &args.calico_dir().join("nodename"))?;
    // The plugins get an answer from the first moment on, even if it is that they must wait.
    let (wiring, wired) = watch::channel(None);
    let socket = args.socket();
    let serving = tokio::spawn(async move { cni::serve(&socket, wired).await });
    let node = async {
        start(&args, &variables, &name, version, wiring).await?;
        std::future::pending::<Result<(), RunError>>().await
    };
    let outcome = tokio::select! {
        outcome = node => outcome,
        outcome = serving => match outcome {
            Ok(Err(error)) => Err(RunError::Io { what: args.socket().display().to_string(), error }),
            Ok(Ok(())) | Err(_) => Ok(()),
        },
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    tracing::info!("stopping; workloads keep their network");
    // Nobody is behind it any more; a plugin that finds nothing there says the same.
    let _ = std::fs::remove_file(args.query_socket());
    let _ = std::fs::remove_file(args.socket());
    outcome
}

async fn start(
    args: &NodeArgs,
    variables: &Variables,
    name: &str,
    version: &str,
    wiring: watch::Sender<Option<Arc<Wiring>>>,
) -> Result<(), RunError> {
    let io = |what: &std::path::Path| {
        let what = what.display().to_string();
        move |error| RunError::Io { what, error }
    };
    let host = Netns::current()?;
    let config = Config::load(&args.config)?;
    let client = Client::connect(&config).await?;
    let resources = Resources::new(client.clone());
    tracing::info!(node = name, "starting");
    loop {
        match startup::register(&resources, variables, name, version).await {
            Ok(()) => break,
            Err(error) if error.is_worth_waiting() => {
                tracing::warn!(%error, "waiting for the datastore");
                tokio::time::sleep(RETRY).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
    let nodename = args.calico_dir().join("nodename");
    files::write(&nodename, name).map_err(io(&nodename))?;

    let journal = Journal::open(&args.journal_dir()).map_err(io(&args.journal_dir()))?;
    let held: HashSet<_> =
        journal.all().iter().filter(|r| r.phase == Phase::Live).filter_map(|r| r.endpoint_key()).collect();
    let state = Arc::new(State::new(name));
    let file = args.settings_file();
    let settings = settings_file::read(&file).map_err(io(&file))?;
    let environment = Environment::new(variables.0.clone(), settings);
    let mut compute = Compute::new(name, environment);
    let backend = bgp::Choice::of(variables.get("CALICO_NETWORKING_BACKEND"));
    if backend.speaks() {
        let router_id = variables.get("CALICO_ROUTER_ID").to_owned();
        compute.speak_bgp(BgpEnvironment { router_id, by_bird: backend == bgp::Choice::Bird });
    }
    let bgp = bgp::start(backend, args, &host, &state);
    let feed = tortie_sync::follow(&client, compute.interests());
    let (engine, reports) = Engine::new(host.clone(), compute, state.clone(), held, bgp);
    let (orders, ordered) = Engine::orders();
    tokio::spawn(engine.run(feed, ordered));
    let run_dir = args.own_run_dir().map(Path::to_owned);
    tokio::spawn(status::endpoints(state.clone(), client.clone(), name.to_owned(), run_dir, reports));
    tokio::spawn(status::heartbeats(state.clone(), client.clone(), name.to_owned()));
    tokio::spawn(queries::serve(args.query_socket(), state.clone()));
    tokio::spawn(NodeStatuses::follow(&state, &resources, &host, name));
    tokio::spawn(http::serve_health(state.clone()));
    tokio::spawn(http::serve_metrics(state.clone()));
    tokio::spawn(follow_addresses(resources.clone(), variables.clone(), name.to_owned()));
    tokio::spawn(write_mtu(state.clone(), args.calico_dir().join("mtu")));

    let allocator = Allocator::following(client, Owner::host(name));
    let made = Arc::new(Wiring::new(name, host, allocator, resources, orders, journal, state.clone()));
    let mut in_sync = state.in_sync();
    // Fails only if the state is gone, and with it everything else.
    let _ = in_sync.wait_for(|in_sync| *in_sync).await;
    made.collect().await;
    wiring.send_replace(Some(made.clone()));
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(COLLECT).await;
            made.collect().await;
        }
    });
    println!("ready: node {name} on {}", args.socket().display());
    tracing::info!(node = name, mtu = state.mtu(), "ready");
    Ok(())
}

async fn follow_addresses(resources: Resources, variables: Variables, name: String) {
    let given = variables.get("AUTODETECT_POLL_INTERVAL").parse::<tortie_model::scalar::Duration>().ok();
    let interval =
        given.and_then(|given| given.to_std()).filter(|given| !given.is_zero()).unwrap_or(ADDRESSES);
    loop {
        tokio::time::sleep(interval).await;
        if let Err(error) = startup::refresh_addresses(&resources, &variables, &name).await {
            tracing::warn!(%error, "the node's addresses could not be looked at again");
        }
    }
}

async fn write_mtu(state: Arc<State>, path: std::path::PathBuf) {
    let mut changes = state.mtu_changes();
    loop {
        let mtu = *changes.borrow_and_update();
        if mtu != 0
            && let Err(error) = files::write(&path, &mtu.to_string())
        {
            tracing::warn!(%error, path = %path.display(), "cannot write the MTU file");
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}
