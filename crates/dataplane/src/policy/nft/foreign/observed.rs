//! Reads the tables of other programs: base chains and the classification of their rules.

use super::super::kernel::fingerprint;
use super::super::message::TABLE_NAME;
use super::super::render::MarkedHook;
use super::super::table::{HookPoint, TableFamily};
use super::diff::ForeignRuleKind;
use super::{ACCEPT_RULE_COMMENT, KUBE_PROXY_CHAIN_PREFIX, KUBE_PROXY_TABLE, accepting};
use crate::failure::KernelObject;
use crate::netlink::attributes;
use nlink::Connection;
use nlink::netlink::Nftables;
use nlink::netlink::nftables::{self as wire, ChainInfo, ChainType, Family, RuleInfo};

/// A base chain of another program.
pub struct BaseChain {
    pub family: Family,
    pub table: String,
    pub name: String,
    point: HookPoint,
    priority: i32,
    /// Whether the chain's policy is drop.
    pub drops: bool,
    pub rules: Vec<ForeignRule>,
}

pub struct ForeignRule {
    pub handle: u64,
    pub comment: Option<String>,
    /// The chain that it jumps to.
    pub target: Option<String>,
    /// Which packets it drops.
    drops: DroppedPackets,
    fingerprint: u64,
}

/// The packets that a rule drops or rejects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DroppedPackets {
    None,
    /// Packets that match a set, a state or a limit. Such rules block selected hosts or packets.
    Selected,
    /// Packets of an address, an interface or a port.
    Matching,
    All,
}

impl BaseChain {
    fn new(chain: &ChainInfo) -> Option<BaseChain> {
        const DROP: u32 = 0;
        let number = chain.hook?;
        Some(BaseChain {
            family: chain.family,
            table: chain.table.clone(),
            name: chain.name.clone(),
            point: TableFamily::Inet.points().iter().copied().find(|point| point.number() == number)?,
            priority: chain.priority?,
            drops: chain.policy == Some(DROP),
            rules: Vec::new(),
        })
    }

    /// Whether packets with the mark reach the chain.
    pub fn is_behind(&self, allowed: &[MarkedHook]) -> bool {
        allowed.iter().any(|place| place.point == self.point && place.priorities.contains(&self.priority))
    }

    /// Returns why the chain may drop forwarded packets that policy allows, although our rule is not in it.
    pub fn overrules(&self, allowed: &[MarkedHook]) -> Option<String> {
        // With other settings, foreign chains decide about all packets.
        let is_forwarding_marked = allowed.iter().any(|place| place.point == HookPoint::Forward);
        let is_on_path =
            [HookPoint::Prerouting, HookPoint::Forward, HookPoint::Postrouting].contains(&self.point);
        if !is_forwarding_marked || !is_on_path || self.is_behind(allowed) {
            return None;
        }
        let cause = if self.drops {
            "its policy is drop".to_owned()
        } else {
            let is_dropping = |rule: &ForeignRule| match rule.drops {
                DroppedPackets::All => true,
                DroppedPackets::Matching => self.point == HookPoint::Forward,
                DroppedPackets::Selected | DroppedPackets::None => false,
            };
            let index = self.rules.iter().position(is_dropping)?;
            format!("its rule {} drops packets", index + 1)
        };
        Some(format!("{cause} (hook {}, priority {})", self.point, self.priority))
    }

    pub fn kinds(&self, bits: u32) -> Vec<ForeignRuleKind> {
        let ours = accepting(bits).fingerprint();
        self.rules.iter().map(|rule| rule.kind(ours)).collect()
    }

    pub fn object(&self) -> KernelObject {
        let table = format!("{} {}", family_name(self.family), self.table);
        KernelObject::ForeignChain { table, name: self.name.clone() }
    }
}

impl ForeignRule {
    pub fn new(rule: &RuleInfo) -> ForeignRule {
        let userdata = rule.userdata_raw.as_deref().unwrap_or_default();
        ForeignRule {
            handle: rule.handle,
            comment: comment(&rule.expression_bytes).or_else(|| rule.comment_text.clone()),
            target: target(&rule.expression_bytes),
            drops: dropped_packets(&rule.expression_bytes),
            fingerprint: fingerprint(userdata),
        }
    }

    fn kind(&self, ours: u64) -> ForeignRuleKind {
        match (self.comment.as_deref(), self.target.as_deref()) {
            (Some(ACCEPT_RULE_COMMENT), _) if self.fingerprint == ours => ForeignRuleKind::Ours,
            (Some(ACCEPT_RULE_COMMENT), _) => ForeignRuleKind::Copy,
            (_, Some(target)) if target.starts_with(KUBE_PROXY_CHAIN_PREFIX) => ForeignRuleKind::Services,
            _ => ForeignRuleKind::Other,
        }
    }
}

pub fn family_name(family: Family) -> &'static str {
    match family {
        Family::Ip => "ip",
        Family::Ip6 => "ip6",
        Family::Inet => "inet",
        Family::Arp => "arp",
        Family::Bridge => "bridge",
        Family::Netdev => "netdev",
        _ => "other",
    }
}

/// Returns the base chains of other programs that filter or change IP packets.
pub(super) async fn base_chains(connection: &Connection<Nftables>) -> nlink::Result<Vec<BaseChain>> {
    let ip = [Family::Ip, Family::Ip6, Family::Inet];
    let all = connection.list_chains().await?;
    let concerned = all.iter().filter(|chain| {
        let theirs = ![TABLE_NAME, KUBE_PROXY_TABLE].contains(&chain.table.as_str());
        ip.contains(&chain.family) && chain.chain_type == Some(ChainType::Filter) && theirs
    });
    let mut chains: Vec<BaseChain> = concerned.filter_map(BaseChain::new).collect();
    let mut tables: Vec<(Family, String)> = Vec::new();
    for chain in &chains {
        let table = (chain.family, chain.table.clone());
        if !tables.contains(&table) {
            tables.push(table);
        }
    }
    for (family, table) in tables {
        for rule in connection.list_rules(&table, family).await? {
            let mut of_family =
                chains.iter_mut().filter(|chain| chain.family == family && chain.table == table);
            if let Some(chain) = of_family.find(|chain| chain.name == rule.chain) {
                chain.rules.push(ForeignRule::new(&rule));
            }
        }
    }
    Ok(chains)
}

/// Iterates over the expressions of a rule as pairs of name and data.
fn expressions(rule: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    attributes::read(rule).filter_map(|(_, expression)| {
        let name = attributes::find(expression, wire::NFTA_EXPR_NAME)?;
        let data = attributes::find(expression, wire::NFTA_EXPR_DATA)?;
        Some((name.strip_suffix(b"\0").unwrap_or(name), data))
    })
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn target(rule: &[u8]) -> Option<String> {
    let chains = expressions(rule)
        .filter(|(name, _)| *name == b"immediate")
        .filter_map(|(_, data)| attributes::find(verdict(data)?, wire::NFTA_VERDICT_CHAIN).map(text));
    chains.last()
}

/// Returns the verdict of an `immediate` expression.
fn verdict(immediate: &[u8]) -> Option<&[u8]> {
    let data = attributes::find(immediate, wire::NFTA_IMMEDIATE_DATA)?;
    attributes::find(data, wire::NFTA_DATA_VERDICT)
}

fn dropped_packets(rule: &[u8]) -> DroppedPackets {
    const DROP: [u8; 4] = [0; 4];
    let mut condition = DroppedPackets::All;
    let mut is_dropping = false;
    for (name, data) in expressions(rule) {
        match name {
            b"counter" | b"log" => {}
            b"reject" => is_dropping = true,
            b"immediate" => {
                let code =
                    verdict(data).and_then(|verdict| attributes::find(verdict, wire::NFTA_VERDICT_CODE));
                is_dropping |= code == Some(&DROP[..]);
            }
            b"meta" | b"payload" | b"cmp" | b"bitwise" if condition == DroppedPackets::All => {
                condition = DroppedPackets::Matching;
            }
            b"meta" | b"payload" | b"cmp" | b"bitwise" => {}
            _ => condition = DroppedPackets::Selected,
        }
    }
    if is_dropping { condition } else { DroppedPackets::None }
}

/// Returns the sets and maps that a rule refers to.
pub fn looked_up_sets(rule: &RuleInfo) -> Vec<String> {
    let lookups = expressions(&rule.expression_bytes).filter(|(name, _)| *name == b"lookup");
    lookups.filter_map(|(_, data)| attributes::find(data, wire::NFTA_LOOKUP_SET).map(text)).collect()
}

/// Returns the comment of an iptables rule, which is stored as a match that always succeeds.
fn comment(rule: &[u8]) -> Option<String> {
    const MATCH_NAME: u16 = 1;
    const MATCH_INFO: u16 = 3;
    let mut comments = expressions(rule).filter(|(name, _)| *name == b"match").filter_map(|(_, data)| {
        let name = attributes::find(data, MATCH_NAME).map(text)?;
        (name == "comment").then(|| attributes::find(data, MATCH_INFO).map(text))?
    });
    comments.next()
}
