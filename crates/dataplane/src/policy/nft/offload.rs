//! Connections that policy has let pass go past all rules from then on, where the settings say so: a flow table, in a table
//! of its own. A kernel without flow tables refuses that one alone.

use crate::error::{Error, Result};
use crate::failure::{Failure, KernelObject};
use crate::netns::Netns;
use crate::policy::FlowInterfaces;
use nlink::Connection;
use nlink::netlink::Nftables;
use nlink::netlink::nftables::{
    BaseChain, Chain, CtState, Family, FilterHook, Flowtable, Priority, Rule, Transaction,
};
use std::collections::BTreeSet;
use std::time::Duration;

const TABLE: &str = "tortie-flows";
const FLOWS: &str = "flows";
const CHAIN: &str = "forward";
const OBJECT: KernelObject = KernelObject::Table { name: "inet tortie-flows" };
/// Behind all chains that may drop a packet, those of others too.
const LAST: i32 = 1000;
/// Of the flow table, where packets come in.
const INGRESS: i32 = 0;
/// Between two looks, and before what was refused is tried again.
const PAUSE: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_secs(5);

pub(super) struct Offload {
    netns: Netns,
    connection: Connection<Nftables>,
    wanted: Wanted,
    /// The kernel may have something else.
    stale: bool,
    not_before: Duration,
    /// How often in a row the kernel has refused, and why the last time.
    refused: (u32, Option<Failure>),
}

/// What the table shall have; nothing at all if no packet may come in through it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Wanted {
    devices: BTreeSet<String>,
    rules: Vec<FlowRule>,
}

/// A rule of the one chain.
#[derive(Clone, Debug, PartialEq, Eq)]
enum FlowRule {
    /// Every packet of this workload is to be seen.
    See { interface: String, arriving: bool },
    /// Connections of workloads go past the rules.
    Pass { prefix: String, arriving: bool },
}

/// What the kernel has.
struct Observed {
    devices: BTreeSet<String>,
    comments: Vec<String>,
}

impl Offload {
    pub fn open(netns: &Netns) -> Result<Offload> {
        Ok(Offload {
            netns: netns.clone(),
            connection: netns.nftables()?,
            wanted: Wanted::default(),
            stale: true,
            not_before: Duration::ZERO,
            refused: (0, None),
        })
    }

    /// The number by which events name what we did.
    pub fn port(&self) -> u32 {
        self.connection.socket().pid()
    }

    /// Somebody may have changed the table; where there is none that is no matter.
    pub fn invalidate(&mut self) {
        self.stale |= self.wanted != Wanted::default();
    }

    /// Why connections take the usual way. A first refusal may be of an interface that has just gone.
    pub fn failure(&self) -> Option<&Failure> {
        self.refused.1.as_ref().filter(|_| self.refused.0 > 1)
    }

    /// Has the connections of these interfaces go past the rules; none if `None`.
    pub async fn converge(
        &mut self,
        interfaces: Option<&FlowInterfaces>,
        prefixes: &[String],
        now: Duration,
    ) {
        let wanted = interfaces.map(|interfaces| Wanted::new(interfaces, prefixes)).unwrap_or_default();
        if self.wanted != wanted {
            self.wanted = wanted;
            (self.stale, self.not_before) = (true, now);
        }
        if !self.stale || now < self.not_before {
            return;
        }
        (self.stale, self.not_before) = (false, now + PAUSE);
        match self.settle().await {
            Ok(()) => self.refused = (0, None),
            Err(error) => {
                self.refused = (self.refused.0.saturating_add(1), Some(error.into()));
                (self.stale, self.not_before) = (true, now + RETRY);
            }
        }
    }

    async fn settle(&self) -> Result<()> {
        let refused = |error: nlink::Error| Error::kernel(OBJECT, &error);
        let observed = self.observe().await.map_err(refused)?;
        let transaction = self.changes(observed).map_err(refused)?;
        match transaction {
            Some(transaction) => self.netns.make(OBJECT, transaction.commit(&self.connection)).await,
            None => Ok(()),
        }
    }

    /// The table, if it is there.
    async fn observe(&self) -> nlink::Result<Option<Observed>> {
        let tables = self.connection.list_tables_in(Family::Inet).await?;
        if !tables.iter().any(|table| table.name == TABLE) {
            return Ok(None);
        }
        let flows = self.connection.list_flowtables_in(TABLE, Family::Inet).await?;
        let flows = flows.into_iter().find(|flows| flows.name == FLOWS);
        let rules = self.connection.list_rules(TABLE, Family::Inet).await?;
        let comments = rules.into_iter().filter(|rule| rule.chain == CHAIN);
        Ok(Some(Observed {
            devices: flows.into_iter().flat_map(|flows| flows.devs).collect(),
            comments: comments.map(|rule| rule.comment_text.unwrap_or_default()).collect(),
        }))
    }

    /// Connections that are past the rules stay so when interfaces come and go.
    fn changes(&self, observed: Option<Observed>) -> nlink::Result<Option<Transaction>> {
        let Wanted { devices, rules } = &self.wanted;
        let transaction = self.connection.transaction();
        let there = observed.is_some();
        match observed {
            None if devices.is_empty() => Ok(None),
            Some(_) if devices.is_empty() => Ok(Some(transaction.del_table(TABLE, Family::Inet))),
            Some(observed) if observed.has(rules) => {
                let missing: Vec<&String> = devices.difference(&observed.devices).collect();
                let surplus: Vec<String> = observed.devices.difference(devices).cloned().collect();
                if missing.is_empty() && surplus.is_empty() {
                    return Ok(None);
                }
                let transaction = match missing.is_empty() {
                    true => transaction,
                    false => transaction.update_flowtable(&flows(missing)),
                };
                Ok(Some(match surplus.is_empty() {
                    true => transaction,
                    false => transaction.del_flowtable_devices(Family::Inet, TABLE, FLOWS, INGRESS, &surplus),
                }))
            }
            _ => {
                let transaction =
                    if there { transaction.del_table(TABLE, Family::Inet) } else { transaction };
                let behind = BaseChain::filter(FilterHook::Forward, Priority::Custom(LAST));
                let transaction = transaction
                    .add_table(TABLE, Family::Inet)
                    .add_flowtable(&flows(devices))
                    .add_chain(Chain::new(TABLE, CHAIN)?.family(Family::Inet).base(behind));
                Ok(Some(
                    rules.iter().fold(transaction, |transaction, rule| transaction.add_rule(rule.written())),
                ))
            }
        }
    }
}

impl Observed {
    /// Whether interfaces are all that may differ.
    fn has(&self, rules: &[FlowRule]) -> bool {
        let comments: Vec<String> = rules.iter().map(FlowRule::comment).collect();
        !self.devices.is_empty() && self.comments == comments
    }
}

impl Wanted {
    fn new(interfaces: &FlowInterfaces, prefixes: &[String]) -> Wanted {
        let both = [true, false];
        let see = interfaces.seen.iter().flat_map(|interface| {
            both.map(|arriving| FlowRule::See { interface: interface.clone(), arriving })
        });
        let pass = prefixes
            .iter()
            .flat_map(|prefix| both.map(|arriving| FlowRule::Pass { prefix: prefix.clone(), arriving }));
        Wanted { devices: interfaces.devices.clone(), rules: see.chain(pass).collect() }
    }
}

impl FlowRule {
    /// By which it is known again.
    fn comment(&self) -> String {
        let way = |arriving: &bool| if *arriving { "from" } else { "to" };
        match self {
            FlowRule::See { interface, arriving } => {
                format!("every packet {} {interface} is seen", way(arriving))
            }
            FlowRule::Pass { prefix, arriving } => format!("connections {} {prefix}*", way(arriving)),
        }
    }

    fn written(&self) -> Rule {
        let rule = Rule::new(TABLE, CHAIN).family(Family::Inet).comment(&self.comment());
        match self {
            FlowRule::See { interface, arriving: true } => rule.match_iif(interface).accept(),
            FlowRule::See { interface, arriving: false } => rule.match_oif(interface).accept(),
            FlowRule::Pass { prefix, arriving } => {
                let rule = rule.match_ct_state(CtState::ESTABLISHED);
                let rule = match arriving {
                    true => rule.match_iif_prefix(prefix),
                    false => rule.match_oif_prefix(prefix),
                };
                rule.flow_offload(FLOWS)
            }
        }
    }
}

fn flows<'d>(devices: impl IntoIterator<Item = &'d String>) -> Flowtable {
    let empty = Flowtable::new(Family::Inet, TABLE, FLOWS).priority(INGRESS).counter(true);
    devices.into_iter().fold(empty, |flows, device| flows.device(device))
}

/// Takes the table away, if there is one.
pub(super) async fn remove(netns: &Netns) -> Result<()> {
    Offload::open(netns)?.settle().await
}
