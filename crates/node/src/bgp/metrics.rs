//! Metrics of BGP sessions. They are derived from the status of the speaker at each request, so that removed peers
//! disappear.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tortie_bgp::BgpFamily as AddressFamily;
use tortie_bgp::core::{BgpPeerState, PeerStatus, SpeakerStatus};
use tortie_http::{declare_metrics, render_registry};

type MetricLabels = Vec<(&'static str, String)>;

const PEER_STATE_NAMES: [(BgpPeerState, &str); 6] = [
    (BgpPeerState::Idle, "Idle"),
    (BgpPeerState::Connect, "Connect"),
    (BgpPeerState::Active, "Active"),
    (BgpPeerState::OpenSent, "OpenSent"),
    (BgpPeerState::OpenConfirm, "OpenConfirm"),
    (BgpPeerState::Established, "Established"),
];

declare_metrics! {
    #[derive(Default)]
    struct SessionMetrics {
        sessions: Family<MetricLabels, Gauge> = "bgp_sessions", "Sessions by state";
        up: Family<MetricLabels, Gauge> = "bgp_session_up", "Whether the session is established";
        uptime: Family<MetricLabels, Gauge> = "bgp_session_uptime_seconds",
            "For how long it has been; 0 if it is not";
        near_limit: Family<MetricLabels, Gauge> = "bgp_near_limit",
            "Whether a peer announces nearly as many routes as it may";
        restarting: Gauge = "bgp_restarting", "Whether peers are waited for after a restart";
        routes: Family<MetricLabels, Gauge> = "bgp_routes", "Destinations with a route";
        prefixes: Family<MetricLabels, Gauge> = "bgp_prefixes",
            "Paths taken from a peer, and prefixes advertised to it";
        updates: Family<MetricLabels, Counter> = "bgp_updates", "UPDATE messages";
        messages: Family<MetricLabels, Counter> = "bgp_messages", "Messages of all types";
        established: Family<MetricLabels, Counter> = "bgp_session_established", "How often the session came up";
        flaps: Family<MetricLabels, Counter> = "bgp_session_flaps", "How often a session that was up ended";
        bad: Family<MetricLabels, Counter> = "bgp_bad_messages", "Messages with errors, by what became of them";
    }
}

/// Renders the metrics of the speaker.
pub fn render_metrics(status: &SpeakerStatus) -> String {
    let numbers = SessionMetrics::default();
    for (state, name) in PEER_STATE_NAMES {
        let count = status.peers.iter().filter(|peer| peer.state == state).count();
        numbers.sessions.get_or_create(&build_labels(&[("state", name)])).set(convert_to_gauge(count as u64));
    }
    numbers.restarting.set(i64::from(status.restarting));
    for family in AddressFamily::ALL {
        let count = *status.routes.get(family) as u64;
        numbers.routes.get_or_create(&build_labels(&[("family", name(family))])).set(convert_to_gauge(count));
    }
    status.peers.iter().for_each(|peer| numbers.add(peer, status));
    let mut registry = Registry::default();
    numbers.register(&mut registry);
    render_registry(&registry)
}

impl SessionMetrics {
    fn add(&self, peer: &PeerStatus, status: &SpeakerStatus) {
        let address = peer.address.to_string();
        let with = |more: &[(&'static str, &str)]| {
            build_labels(&[&[("peer", &*peer.name), ("address", &address)], more].concat())
        };
        let up = peer.state == BgpPeerState::Established;
        self.up.get_or_create(&with(&[])).set(i64::from(up));
        let age = if up { status.now.saturating_sub(peer.since).as_secs() } else { 0 };
        self.uptime.get_or_create(&with(&[])).set(convert_to_gauge(age));
        self.near_limit.get_or_create(&with(&[])).set(i64::from(peer.near_limit));
        for family in AddressFamily::ALL {
            // A session carries the negotiated families, usually that of its address.
            if AddressFamily::of(peer.address) != family && !peer.families.contains(&family) {
                continue;
            }
            for (direction, count) in
                [("in", peer.prefixes_in.get(family)), ("out", peer.prefixes_out.get(family))]
            {
                let labels = with(&[("family", name(family)), ("direction", direction)]);
                self.prefixes.get_or_create(&labels).set(i64::from(*count));
            }
        }
        for (counters, received, sent) in [
            (&self.updates, peer.updates_in, peer.updates_out),
            (&self.messages, peer.messages_in, peer.messages_out),
        ] {
            counters.get_or_create(&with(&[("direction", "in")])).inc_by(received);
            counters.get_or_create(&with(&[("direction", "out")])).inc_by(sent);
        }
        self.established.get_or_create(&with(&[])).inc_by(peer.established);
        self.flaps.get_or_create(&with(&[])).inc_by(peer.established.saturating_sub(u64::from(up)));
        self.bad.get_or_create(&with(&[("outcome", "withdrawn")])).inc_by(peer.malformed);
        self.bad.get_or_create(&with(&[("outcome", "reset")])).inc_by(peer.refused);
    }
}

fn build_labels(pairs: &[(&'static str, &str)]) -> MetricLabels {
    pairs.iter().map(|(key, value)| (*key, (*value).to_owned())).collect()
}

fn name(family: AddressFamily) -> &'static str {
    match family {
        AddressFamily::V4 => "ipv4",
        AddressFamily::V6 => "ipv6",
    }
}

fn convert_to_gauge(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
