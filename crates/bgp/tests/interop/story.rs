//! The scenario that every other implementation must complete with our speaker: sessions with passwords, routes of
//! both families in both directions, withdrawal, refresh, and graceful restart of either side.

use crate::place::{NamespaceExt, TestNamespace, eventually};
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tortie_bgp::core::{BgpPeerState, PeerStatus, RouteChange, ShutdownMode};
use tortie_bgp::{PeerConfig, RouteAttrs, RouteChangeStream, Speaker, SpeakerConfig};

pub const ASN: u32 = 64512;
pub const PASSWORD: &str = "correct-horse";
pub const OURS: [&str; 2] = ["192.0.2.0/24", "2001:db8:1::/48"];
pub const THEIRS: [&str; 2] = ["203.0.113.0/24", "2001:db8:aaaa::/48"];
const SESSIONS: [&str; 2] = ["v4", "v6"];

/// The other router: an IPv4 and an IPv6 session with us, each with [`PASSWORD`], announcing [`THEIRS`].
pub trait InteropRouter {
    /// Returns whether it has learnt a route.
    fn has(&self, prefix: &str) -> bool;
    fn announce(&mut self);
    fn withdraw(&mut self);
    /// Requests our routes again. Returns whether it supports that.
    fn refresh(&mut self) -> bool;
    /// Terminates without a NOTIFICATION.
    fn kill(&mut self);
    /// Starts again with the restart flag set in its OPEN.
    fn restart(&mut self);
    /// Returns whether it announces [`THEIRS`] again before it sends End-of-RIB.
    fn announces_by_itself(&self) -> bool;
}

/// Our routes as a kernel would have them, and the routes that were ever removed.
#[derive(Clone, Default)]
pub struct InstalledRoutes {
    routes: Arc<Mutex<BTreeMap<IpNet, Vec<IpAddr>>>>,
    gone: Arc<Mutex<Vec<IpNet>>>,
}

impl InstalledRoutes {
    pub fn follow(mut changes: RouteChangeStream) -> InstalledRoutes {
        let kernel = InstalledRoutes::default();
        let follower = kernel.clone();
        tokio::spawn(async move {
            while let Some(batch) = changes.next().await {
                for change in batch {
                    match change {
                        RouteChange::Set(route) => {
                            let hops = route.next_hops.iter().map(|hop| hop.address).collect();
                            follower.routes.lock().unwrap().insert(route.prefix, hops);
                        }
                        RouteChange::Gone(prefix) => {
                            follower.routes.lock().unwrap().remove(&prefix);
                            follower.gone.lock().unwrap().push(prefix);
                        }
                        RouteChange::Complete => {}
                    }
                }
            }
        });
        kernel
    }

    pub fn next_hops(&self, prefix: &str) -> Vec<IpAddr> {
        self.routes.lock().unwrap().get(&prefix.parse().unwrap()).cloned().unwrap_or_default()
    }

    fn has_theirs(&self) -> bool {
        let expected: [IpAddr; 2] = ["10.77.0.2".parse().unwrap(), "fd77::2".parse().unwrap()];
        THEIRS.iter().zip(expected).all(|(prefix, hop)| self.next_hops(prefix) == [hop])
    }

    pub fn forget_what_went(&self) {
        self.gone.lock().unwrap().clear();
    }

    pub fn what_went(&self) -> Vec<IpNet> {
        self.gone.lock().unwrap().clone()
    }
}

pub fn config(password: Option<&str>) -> SpeakerConfig {
    let mut config = SpeakerConfig::new(ASN, "10.77.0.1".parse().unwrap());
    config.listen = vec!["0.0.0.0:179".parse().unwrap(), "[::]:179".parse().unwrap()];
    for (name, address) in SESSIONS.iter().zip(["10.77.0.2", "fd77::2"]) {
        let mut peer = PeerConfig::new(address.parse().unwrap(), ASN);
        peer.password = password.map(str::to_owned);
        peer.connect_retry = Duration::from_secs(1);
        peer.idle_hold = (Duration::from_secs(1), Duration::from_secs(2));
        config.peers.insert((*name).to_owned(), peer);
    }
    config
}

pub async fn start(
    namespace: &TestNamespace,
    config: SpeakerConfig,
    restarting: bool,
) -> (Speaker, InstalledRoutes) {
    let (speaker, routes) = Speaker::start(config, namespace.sockets(), restarting).await.unwrap();
    (speaker, InstalledRoutes::follow(routes))
}

pub async fn peer(speaker: &Speaker, name: &str) -> PeerStatus {
    let status = speaker.status().unwrap();
    status.peers.into_iter().find(|peer| &*peer.name == name).unwrap()
}

pub async fn both_up(speaker: &Speaker) -> bool {
    let status = speaker.status().unwrap();
    status.peers.iter().all(|peer| peer.state == BgpPeerState::Established)
}

async fn originate(speaker: &Speaker) {
    for prefix in OURS {
        speaker.originate(prefix.parse().unwrap(), RouteAttrs::local()).await.unwrap();
    }
    speaker.local_complete().await.unwrap();
}

fn has_ours(router: &impl InteropRouter) -> bool {
    OURS.iter().all(|prefix| router.has(prefix))
}

/// Runs the scenario. `router` has just been started in the other namespace.
pub async fn tell(namespace: &TestNamespace, mut router: impl InteropRouter) {
    let (speaker, kernel) = start(namespace, config(Some(PASSWORD)), false).await;
    originate(&speaker).await;
    eventually("the sessions are up", || both_up(&speaker)).await;
    router.announce();
    eventually("we have their routes", async || kernel.has_theirs()).await;
    eventually("they have ours", async || has_ours(&router)).await;

    // Withdrawal in both directions.
    for prefix in OURS {
        speaker.withdraw(prefix.parse().unwrap()).await.unwrap();
    }
    eventually("ours are gone", async || !OURS.iter().any(|prefix| router.has(prefix))).await;
    router.withdraw();
    eventually("theirs are gone", async || THEIRS.iter().all(|prefix| kernel.next_hops(prefix).is_empty()))
        .await;
    originate(&speaker).await;
    router.announce();
    eventually("all routes are back", async || kernel.has_theirs() && has_ours(&router)).await;

    // Refresh in both directions.
    let before = [peer(&speaker, "v4").await.updates_out, peer(&speaker, "v6").await.updates_out];
    if router.refresh() {
        eventually("they have heard our routes again", async || {
            peer(&speaker, "v4").await.updates_out > before[0]
                && peer(&speaker, "v6").await.updates_out > before[1]
        })
        .await;
    }
    let before = [peer(&speaker, "v4").await.updates_in, peer(&speaker, "v6").await.updates_in];
    for session in SESSIONS {
        speaker.refresh(session).await.unwrap();
    }
    eventually("we have heard their routes again", async || {
        peer(&speaker, "v4").await.updates_in > before[0] && peer(&speaker, "v6").await.updates_in > before[1]
    })
    .await;
    assert!(both_up(&speaker).await && kernel.has_theirs() && has_ours(&router));

    // The router restarts; we keep its routes during the restart.
    kernel.forget_what_went();
    router.kill();
    eventually("we miss them", async || !both_up(&speaker).await).await;
    assert!(peer(&speaker, "v4").await.waiting || peer(&speaker, "v6").await.waiting);
    assert!(kernel.has_theirs());
    assert_eq!(kernel.what_went(), [], "a route went while they were away");
    router.restart();
    eventually("the sessions are up again", || both_up(&speaker)).await;
    router.announce();
    eventually("they have all again", async || has_ours(&router) && kernel.has_theirs()).await;
    if router.announces_by_itself() {
        assert_eq!(kernel.what_went(), [], "a route went while they restarted");
    }

    // We restart; the router keeps our routes.
    speaker.shutdown(ShutdownMode::Graceful).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(has_ours(&router), "they did not wait for us");
    let (speaker, kernel) = start(namespace, config(Some(PASSWORD)), true).await;
    originate(&speaker).await;
    eventually("we are back", || both_up(&speaker)).await;
    eventually("we have all again", async || kernel.has_theirs() && has_ours(&router)).await;

    // A wrong password keeps a session down, and only that session.
    let up = peer(&speaker, "v6").await.since;
    let mut wrong = config(Some(PASSWORD));
    wrong.peers.get_mut("v4").unwrap().password = Some("wrong".to_owned());
    speaker.reconfigure(wrong).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_ne!(peer(&speaker, "v4").await.state, BgpPeerState::Established);
    speaker.reconfigure(config(Some(PASSWORD))).await.unwrap();
    eventually("the right password brings it back", || both_up(&speaker)).await;
    assert_eq!(peer(&speaker, "v6").await.since, up, "the other session was disturbed");

    // We shut down administratively; the router drops our routes immediately.
    speaker.shutdown(ShutdownMode::Administrative { reason: "the end".to_owned() }).await.unwrap();
    eventually("ours are gone for good", async || !OURS.iter().any(|prefix| router.has(prefix))).await;
}
