//! What is advertised to peers, what is accepted from them and what goes into the kernel, unless a BGPFilter says otherwise.
//!
//! The same rules in the same order as those of our own speaker, in BIRD's filter language.

use super::filters::{add, beneath};
use crate::family::Family;
use ipnet::IpNet;
use tortie_plan::bgp::{Bgp, Community, Export, LOCAL_PREF_OF_METRIC_0, PoolRoutes};

pub(super) const LARGEST_PREF: u32 = LOCAL_PREF_OF_METRIC_0;

pub(super) fn tag(community: Community) -> String {
    match community {
        Community::Standard(high, low) => format!("({high},{low})"),
        Community::Large(first, second, third) => format!("({first},{second},{third})"),
    }
}

/// Names of functions and filters end with the family.
pub(super) fn define(bgp: &Bgp, family: Family) -> String {
    let normal = match family {
        Family::V4 => bgp.export.priority_v4,
        Family::V6 => bgp.export.priority_v6,
    };
    [
        priority(normal, family),
        export(bgp, normal, family),
        import(normal, family),
        kernel(bgp, normal, family),
    ]
    .concat()
}

/// A route that did not come with a preference gets the one that its metric means. The kernel's 0 is no metric.
fn priority(normal: u32, family: Family) -> String {
    format!(
        "function calico_priority_{family}()
{{
  if !(source = RTS_BGP && defined(bgp_local_pref)) then {{
    bgp_local_pref = {};
    if defined(krt_metric) && krt_metric > 0 && krt_metric < {LARGEST_PREF} then bgp_local_pref = {LARGEST_PREF} - krt_metric;
  }}
}}
",
        LARGEST_PREF.saturating_sub(normal)
    )
}

fn export(bgp: &Bgp, normal: u32, family: Family) -> String {
    let export = &bgp.export;
    let mut text =
        format!("function calico_export_to_bgp_peers_{family}(bool same_as; bool takes_over)\n{{\n");
    text += &inside(&export.silent_pools, family, "reject;");
    text +=
        "  if same_as && (ifname ~ \"*.cali\" || ifname ~ \"*.calico\" || ifname ~ \"tunl0\") then reject;\n";
    text += "  if ifname ~ \"bpf*.cali\" then reject;\n";
    for (net, values) in &export.communities {
        let changes: String = values.iter().map(|value| add(*value)).collect();
        text += &inside(std::slice::from_ref(net), family, &format!("{{ {changes}}}"));
    }
    let blocks: Vec<IpNet> =
        export.blocks.iter().filter(|(_, advertised)| **advertised).map(|(block, _)| *block).collect();
    text += &when(&blocks, family, ToString::to_string, "accept;");
    // A single address moves here from another node, or away.
    let migrating =
        format!("{{ if bgp_local_pref > {} then accept; reject; }}", LARGEST_PREF.saturating_sub(normal));
    text += &inside(&blocks, family, &migrating);
    let services: Vec<IpNet> = export.service_routes().collect();
    text += &when(&services, family, ToString::to_string, "if source = RTS_STATIC then accept;");
    text += &inside(&export.reflected, family, "accept;");
    let of_others = "if source = RTS_BGP then { if takes_over then reject; accept; }";
    text += &inside(&export.services, family, of_others);
    text += &inside(&export.pools, family, "accept;");
    text + "  reject;\n}\n"
}

/// A route that is better than a normal one of ours beats it.
fn import(normal: u32, family: Family) -> String {
    format!(
        "function calico_import_{family}()
{{
  if bgp_local_pref > {} then preference = 200;
  accept;
}}
",
        LARGEST_PREF.saturating_sub(normal)
    )
}

/// The metric is there for every route, so that the kernel has the same ones whoever speaks BGP here.
fn kernel(bgp: &Bgp, normal: u32, family: Family) -> String {
    // BIRD 2 would write the networks of the host's own links too, which are the kernel's.
    let own = "  if source = RTS_DEVICE then reject;\n";
    let mut text = format!("filter calico_kernel_programming_{family}\n{{\n{own}");
    text += &inside(&bgp.install.never, family, "reject;");
    // What goes nowhere in BIRD's table would go nowhere on this node either.
    text += &when(&single(&bgp.export), family, ToString::to_string, "if source = RTS_STATIC then reject;");
    text += &format!(
        "  krt_metric = {normal};
  if source = RTS_BGP && defined(bgp_local_pref) then {{
    if bgp_local_pref < {LARGEST_PREF} then krt_metric = {LARGEST_PREF} - bgp_local_pref; else krt_metric = 0;
  }}
"
    );
    let mut pools = bgp.install.pools.clone();
    // The longest that contains a route counts.
    pools.sort_by_key(|(net, _)| std::cmp::Reverse(net.prefix_len()));
    for (net, routes) in &pools {
        let verdict = if *routes == PoolRoutes::OfOthers { "reject;" } else { "accept;" };
        text += &inside(std::slice::from_ref(net), family, verdict);
    }
    text + "  accept;\n}\n"
}

/// Single addresses of services.
fn single(export: &Export) -> Vec<IpNet> {
    export.service_addresses.iter().map(|address| IpNet::from(*address)).collect()
}

fn inside(nets: &[IpNet], family: Family, then: &str) -> String {
    when(nets, family, beneath, then)
}

/// BIRD has no empty sets: where there is no net of the family, there is no statement.
fn when(nets: &[IpNet], family: Family, pattern: impl Fn(&IpNet) -> String, then: &str) -> String {
    let nets: Vec<String> = nets.iter().filter(|net| Family::of(net.addr()) == family).map(pattern).collect();
    match nets.is_empty() {
        true => String::new(),
        false => format!("  if net ~ [ {} ] then {then}\n", nets.join(", ")),
    }
}
