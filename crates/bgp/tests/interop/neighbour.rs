//! A host with a complete configuration of BIRD, as Calico's documentation shows it for a router: BIRD learns routes that others
//! have written, exports an aggregate instead of its parts, merges equal paths, keeps its routes when it ends, and restarts
//! gracefully.

use crate::bird::BirdInteropRouter;
use crate::place::{TestNamespace, eventually, pair};
use crate::story::{ASN, InstalledRoutes, InteropRouter, both_up, start};
use std::time::Duration;
use tortie_bgp::{PeerConfig, RouteAttrs, Speaker, SpeakerConfig};

const OUR_PREFIX: &str = "192.0.2.0/24";
const AGGREGATE: &str = "203.0.113.0/26";
/// Routes that BIRD finds in the kernel: a part of the aggregate, and one that is not.
const PART: &str = "203.0.113.5";
const LEARNT: &str = "198.51.100.0/24";

const BIRD_CONFIGURATION: &str = "
    router id 10.77.0.2;
    filter without_parts {
      if net = 203.0.113.0/26 then accept;
      if net ~ 203.0.113.0/26 then reject;
      if source = RTS_INHERIT then accept;
      reject;
    }
    protocol device { scan time 1; }
    protocol direct { ipv4; }
    protocol static { ipv4; route 203.0.113.0/26 blackhole; }
    protocol kernel {
      learn; persist; scan time 1; merge paths on; graceful restart;
      ipv4 { import all; export all; };
    }
    template bgp node {
      local as ASN; graceful restart on; connect delay time 1; connect retry time 1; error wait time 1, 2;
      ipv4 { import all; export filter without_parts; };
    }
    protocol bgp node1 from node { neighbor 10.77.0.1 as ASN; }
    protocol bgp node3 from node { neighbor 10.77.0.3 as ASN; }
";

/// Starts a speaker at 10.77.0.`own` that announces the prefix.
async fn announce(namespace: &TestNamespace, own: u8) -> (Speaker, InstalledRoutes) {
    let address = std::net::Ipv4Addr::new(10, 77, 0, own);
    let mut config = SpeakerConfig::new(ASN, address);
    config.listen = vec![(address, 179).into()];
    let mut peer = PeerConfig::new("10.77.0.2".parse().unwrap(), ASN);
    peer.source = Some(address.into());
    peer.connect_retry = Duration::from_secs(1);
    peer.idle_hold = (Duration::from_secs(1), Duration::from_secs(2));
    config.peers.insert("bird".to_owned(), peer);
    let (speaker, kernel) = start(namespace, config, false).await;
    speaker.originate(OUR_PREFIX.parse().unwrap(), RouteAttrs::local()).await.unwrap();
    speaker.local_complete().await.unwrap();
    (speaker, kernel)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_complete_bird_configuration_works() {
    let (ours, theirs) = pair();
    ours.ip("addr add 10.77.0.3/24 dev eth0");
    for route in [PART, LEARNT] {
        theirs.ip(&format!("route add blackhole {route} proto static"));
    }
    let mut bird =
        BirdInteropRouter::start_with(&theirs, &BIRD_CONFIGURATION.replace("ASN", &ASN.to_string()));
    let (first, kernel) = announce(&ours, 1).await;
    let (second, _) = announce(&ours, 3).await;
    let has_both = |kernel: &InstalledRoutes| {
        [AGGREGATE, LEARNT]
            .iter()
            .all(|prefix| kernel.next_hops(prefix) == ["10.77.0.2".parse::<std::net::IpAddr>().unwrap()])
    };
    eventually("the learnt route and the aggregate arrive", async || has_both(&kernel)).await;
    assert!(kernel.next_hops(&format!("{PART}/32")).is_empty(), "a part of the aggregate was announced");
    let routes = || theirs.ip("-4 route show proto bird");
    let is_merged = || {
        let routes = routes();
        routes.contains(OUR_PREFIX)
            && ["10.77.0.1", "10.77.0.3"].iter().all(|hop| routes.contains(&format!("nexthop via {hop} ")))
    };
    eventually("BIRD uses both paths", async || is_merged()).await;

    // While BIRD is away for a moment, both sides keep the routes.
    kernel.forget_what_went();
    bird.kill();
    eventually("the sessions are down", async || !both_up(&first).await && !both_up(&second).await).await;
    assert!(has_both(&kernel) && is_merged(), "{}", routes());
    bird.restart();
    eventually("the sessions are back", async || both_up(&first).await && both_up(&second).await).await;
    eventually("the routes are confirmed", async || has_both(&kernel) && is_merged()).await;
    assert_eq!(kernel.what_went(), [], "a route went while BIRD restarted");

    // BIRD shuts down: its routes stay in its kernel, and our speaker drops its announcements.
    bird.shut_down();
    eventually("we drop its routes", async || kernel.next_hops(AGGREGATE).is_empty()).await;
    assert!(is_merged(), "{}", routes());
}
