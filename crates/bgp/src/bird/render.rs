//! Renders the complete BIRD configuration from the plan.

use super::filters::{self, Direction};
use super::policy;
use crate::family::Family;
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::net::IpAddr;
use tortie_plan::bgp::{Bgp, NextHopMode, Secret, Session};

const HOLD_TIME: u16 = 240;
const LONGEST_RESTART: u16 = 4095;
const LONGEST_PASSWORD: usize = 80;

/// Format of all times that BIRD prints: a single word that includes the time zone.
pub(super) const TIME: &str = "%Y-%m-%dT%H:%M:%S%z";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    pub text: String,
    /// Parts of the plan that cannot be expressed for BIRD, with the reason. Everything else is in the text.
    pub skipped: Vec<String>,
}

/// Renders the configuration. `password` returns the content of a secret. Returns `None` if the node has no router
/// ID.
pub fn render(bgp: &Bgp, password: impl Fn(&Secret) -> Result<String, String>) -> Option<Rendered> {
    let mut text = head(bgp, &bgp.router_id?.to_string());
    for (family, number) in [(Family::V4, 1), (Family::V6, 2)] {
        text += &policy::define(bgp, family);
        text += &format!(
            "protocol kernel kernel{number} {{
  {family} {{ import all; export filter calico_kernel_programming_{family}; }};
  learn; persist; scan time 2; graceful restart; merge paths on; metric 0;
}}
"
        );
        text += &originated(bgp, family, number);
    }
    bgp.filters.iter().for_each(|(name, filter)| text += &filters::define(name, filter));
    text += &format!(
        "template bgp bgp_template {{
  description \"Connection to BGP peer\";
  connect delay time 2; connect retry time 5; error wait time 5, 30;
  hold time {HOLD_TIME}; graceful restart on;
}}
"
    );
    let mut skipped = Vec::new();
    for (name, session) in &bgp.sessions {
        let password = match session.password.as_ref().map(&password).transpose() {
            Ok(password) => password,
            Err(missing) => {
                skipped.push(format!("session {name} is left out: {missing}"));
                continue;
            }
        };
        match refusal(session, password.as_deref()) {
            Some(reason) => skipped.push(format!("session {name} is left out: {reason}")),
            None => text += &self::session(bgp, name, session, password.as_deref()),
        }
    }
    Some(Rendered { text, skipped })
}

fn head(bgp: &Bgp, router_id: &str) -> String {
    let ignored: String = bgp.ignored_interfaces.iter().map(|pattern| format!("-\"{pattern}\", ")).collect();
    format!(
        "# Made by tortie of what the datastore says; whatever is changed here is lost.
log stderr all;
debug protocols {{ states }};
timeformat base \"{TIME}\";
timeformat protocol \"{TIME}\";
timeformat route \"{TIME}\";
router id {router_id};
protocol device device1 {{ scan time 2; }}
protocol direct direct1 {{ ipv4; ipv6; interface {ignored}-\"cali*\", -\"kube-ipvs*\", \"*\"; }}
"
    )
}

/// Renders the static routes: the blocks of this node (blackhole, unless a workload has the address), services, and
/// peers behind a gateway.
fn originated(bgp: &Bgp, family: Family, number: u8) -> String {
    let mut text = format!("protocol static static{number} {{\n  {family};\n");
    let blocks = bgp.export.blocks.keys().filter(|block| block.prefix_len() < block.max_prefix_len());
    let mut own: BTreeSet<IpNet> = blocks.copied().chain(bgp.export.service_routes()).collect();
    own.retain(|net| Family::of(net.addr()) == family);
    for net in own {
        text += &format!("  route {net} blackhole;\n");
    }
    for (peer, gateway) in bgp.gateways().iter().filter(|(peer, _)| Family::of(peer.addr()) == family) {
        text += &format!("  route {peer} via {gateway};\n");
    }
    text + "}\n"
}

/// Returns why BIRD would reject a session, and with it the whole configuration.
fn refusal(session: &Session, password: Option<&str>) -> Option<&'static str> {
    let written = |text: &str| text.bytes().all(|byte| byte != b'"' && !byte.is_ascii_control());
    match password {
        _ if session.remote_as == 0 => Some("0 is not an AS number"),
        Some(password) if password.len() > LONGEST_PASSWORD => Some("its password is over 80 bytes"),
        Some(password) if !written(password) => {
            Some("its password has a quotation mark or a control character, which BIRD cannot read")
        }
        _ => None,
    }
}

fn session(bgp: &Bgp, name: &str, session: &Session, password: Option<&str>) -> String {
    let family = Family::of(session.peer);
    let local_as = session.local_as.unwrap_or(bgp.as_number);
    let same_as = local_as == session.remote_as;
    let bound = bgp.listen.iter().copied().find(|address| Family::of(*address) == family);
    // BIRD listens on the local address of a session; without one, on all addresses.
    let own = bound.or(session.source).map(|address: IpAddr| format!("{address} ")).unwrap_or_default();
    let mut lines = vec![
        format!("local {own}port {} as {local_as};", bgp.listen_port),
        format!("neighbor {} port {} as {};", session.peer, session.port, session.remote_as),
        session
            .ttl_security
            .map_or("multihop;".to_owned(), |hops| format!("multihop {hops}; ttl security on;")),
    ];
    lines.extend(bound.map(|_| "strict bind on;".to_owned()));
    lines.extend(session.passive.then(|| "passive on;".to_owned()));
    lines.extend(password.map(|password| format!("password \"{password}\";")));
    let restart = session.restart_time.map(|time| time.min(LONGEST_RESTART));
    lines.extend(restart.map(|time| format!("graceful restart time {time};")));
    let keepalive = session.keepalive.filter(|time| *time > 0).map(|time| time.min(HOLD_TIME));
    lines.extend(keepalive.map(|time| format!("keepalive time {time};")));
    lines.extend(session.reflect.map(|cluster| format!("rr client; rr cluster id {cluster};")));
    lines.extend((session.allow_own_as > 0).then(|| format!("allow local as {};", session.allow_own_as)));
    let asked = |direction| -> String {
        let known = session.filters.iter().filter_map(|name| Some((name, bgp.filters.get(name)?)));
        known.map(|(name, filter)| filters::call(name, filter, direction, family, same_as)).collect()
    };
    let next_hop = match session.next_hop {
        NextHopMode::Auto => "",
        NextHopMode::Own => " next hop self;",
        NextHopMode::Keep => " next hop keep;",
    };
    format!(
        "protocol bgp {name} from bgp_template {{
  {}
  {family} {{
    import filter {{ {}calico_import_{family}(); }};
    export filter {{ calico_priority_{family}(); {}calico_export_to_bgp_peers_{family}({same_as}, {}); }};
    add paths on; gateway recursive;{next_hop}
  }};
}}
",
        lines.join("\n  "),
        asked(Direction::Import),
        asked(Direction::Export),
        session.takes_over(bgp.as_number),
    )
}
