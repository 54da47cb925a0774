//! The default policy: which routes are advertised to peers, accepted from them and installed into the kernel, unless
//! a BGPFilter decides otherwise.
//!
//! The rules and their order are those of our own speaker, in BIRD's filter language.

use super::filters::{add, beneath};
use crate::family::BgpFamily;
use ipnet::IpNet;
use tortie_plan::bgp::{BgpCommunity, BgpConfig, BgpExport, LOCAL_PREF_OF_METRIC_0, PoolRoutes};

pub(super) const MAX_LOCAL_PREF: u32 = LOCAL_PREF_OF_METRIC_0;

pub(super) fn tag(community: BgpCommunity) -> String {
    match community {
        BgpCommunity::Standard(high, low) => format!("({high},{low})"),
        BgpCommunity::Large(first, second, third) => format!("({first},{second},{third})"),
    }
}

/// Renders the functions and filters of a family. Their names end with the family.
pub(super) fn define(bgp: &BgpConfig, family: BgpFamily) -> String {
    let normal = match family {
        BgpFamily::V4 => bgp.export.priority_v4,
        BgpFamily::V6 => bgp.export.priority_v6,
    };
    [
        render_priority(normal, family),
        export(bgp, normal, family),
        import(normal, family),
        render_kernel(bgp, normal, family),
    ]
    .concat()
}

/// Sets the local preference of a route that was received without one from its metric. The kernel reports 0 for "no
/// metric".
fn render_priority(normal: u32, family: BgpFamily) -> String {
    format!(
        "function calico_priority_{family}()
{{
  if !(source = RTS_BGP && defined(bgp_local_pref)) then {{
    bgp_local_pref = {};
    if defined(krt_metric) && krt_metric > 0 && krt_metric < {MAX_LOCAL_PREF} then bgp_local_pref = {MAX_LOCAL_PREF} - krt_metric;
  }}
}}
",
        MAX_LOCAL_PREF.saturating_sub(normal)
    )
}

fn export(bgp: &BgpConfig, normal: u32, family: BgpFamily) -> String {
    let export = &bgp.export;
    let mut text =
        format!("function calico_export_to_bgp_peers_{family}(bool same_as; bool takes_over)\n{{\n");
    text += &render_network_condition(&export.silent_pools, family, "reject;");
    text +=
        "  if same_as && (ifname ~ \"*.cali\" || ifname ~ \"*.calico\" || ifname ~ \"tunl0\") then reject;\n";
    text += "  if ifname ~ \"bpf*.cali\" then reject;\n";
    for (net, values) in &export.communities {
        let changes: String = values.iter().map(|value| add(*value)).collect();
        text += &render_network_condition(std::slice::from_ref(net), family, &format!("{{ {changes}}}"));
    }
    let blocks: Vec<IpNet> =
        export.blocks.iter().filter(|(_, advertised)| **advertised).map(|(block, _)| *block).collect();
    text += &render_condition(&blocks, family, ToString::to_string, "accept;");
    // A more specific route, to a single address, exists while a workload migrates to or from this node.
    let migrating =
        format!("{{ if bgp_local_pref > {} then accept; reject; }}", MAX_LOCAL_PREF.saturating_sub(normal));
    text += &render_network_condition(&blocks, family, &migrating);
    let services: Vec<IpNet> = export.service_routes().collect();
    text += &render_condition(&services, family, ToString::to_string, "if source = RTS_STATIC then accept;");
    text += &render_network_condition(&export.reflected, family, "accept;");
    let of_others = "if source = RTS_BGP then { if takes_over then reject; accept; }";
    text += &render_network_condition(&export.services, family, of_others);
    text += &render_network_condition(&export.pools, family, "accept;");
    text + "  reject;\n}\n"
}

/// Prefers a learnt route over our own if its local preference is higher than the normal one.
fn import(normal: u32, family: BgpFamily) -> String {
    format!(
        "function calico_import_{family}()
{{
  if bgp_local_pref > {} then preference = 200;
  accept;
}}
",
        MAX_LOCAL_PREF.saturating_sub(normal)
    )
}

/// Renders the export filter of the kernel protocol. Every route gets a metric, so that the kernel routes are the
/// same whether BIRD or our own speaker installs them.
fn render_kernel(bgp: &BgpConfig, normal: u32, family: BgpFamily) -> String {
    // BIRD 2 would also write the networks of the host's own links, which belong to the kernel.
    let own = "  if source = RTS_DEVICE then reject;\n";
    let mut text = format!("filter calico_kernel_programming_{family}\n{{\n{own}");
    text += &render_network_condition(&bgp.install.never, family, "reject;");
    // A blackhole route in BIRD's table would also blackhole the address on this node.
    text += &render_condition(
        &list_service_prefixes(&bgp.export),
        family,
        ToString::to_string,
        "if source = RTS_STATIC then reject;",
    );
    text += &format!(
        "  krt_metric = {normal};
  if source = RTS_BGP && defined(bgp_local_pref) then {{
    if bgp_local_pref < {MAX_LOCAL_PREF} then krt_metric = {MAX_LOCAL_PREF} - bgp_local_pref; else krt_metric = 0;
  }}
"
    );
    let mut pools = bgp.install.pools.clone();
    // The most specific pool that contains a route applies.
    pools.sort_by_key(|(net, _)| std::cmp::Reverse(net.prefix_len()));
    for (net, routes) in &pools {
        let verdict = if *routes == PoolRoutes::OfOthers { "reject;" } else { "accept;" };
        text += &render_network_condition(std::slice::from_ref(net), family, verdict);
    }
    text + "  accept;\n}\n"
}

/// Returns the service addresses as host prefixes.
fn list_service_prefixes(export: &BgpExport) -> Vec<IpNet> {
    export.service_addresses.iter().map(|address| IpNet::from(*address)).collect()
}

fn render_network_condition(nets: &[IpNet], family: BgpFamily, then: &str) -> String {
    render_condition(nets, family, beneath, then)
}

/// Renders a condition on a set of networks. BIRD has no empty sets: without a network of the family there is no
/// statement.
fn render_condition(
    nets: &[IpNet],
    family: BgpFamily,
    pattern: impl Fn(&IpNet) -> String,
    then: &str,
) -> String {
    let nets: Vec<String> =
        nets.iter().filter(|net| BgpFamily::of(net.addr()) == family).map(pattern).collect();
    if nets.is_empty() {
        return String::new();
    }
    format!("  if net ~ [ {} ] then {then}\n", nets.join(", "))
}
