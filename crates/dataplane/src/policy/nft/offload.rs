//! Offloads flows that policy has accepted, so that their packets bypass all rules, if the settings request it. Uses a
//! flowtable in a separate table: a kernel without flowtables rejects only that table.

use crate::error::{DataplaneError, DataplaneResult};
use crate::failure::{KernelFailure, KernelObject};
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
const FLOWTABLE_NAME: &str = "flows";
const CHAIN: &str = "forward";
const FLOW_TABLE_OBJECT: KernelObject = KernelObject::Table { name: "inet tortie-flows" };
/// Behind all chains that may drop a packet, including those of other programs.
const FORWARD_PRIORITY: i32 = 1000;
/// Ingress priority of the flowtable.
const INGRESS_PRIORITY: i32 = 0;
/// Minimum interval between two reads, and delay after a rejection.
const MIN_READ_INTERVAL: Duration = Duration::from_secs(1);
const OFFLOAD_RETRY_DELAY: Duration = Duration::from_secs(5);

pub(super) struct FlowtableOffload {
    netns: Netns,
    connection: Connection<Nftables>,
    wanted: DesiredFlowtable,
    /// Whether the kernel's table may differ.
    stale: bool,
    not_before: Duration,
    /// Number of consecutive rejections, and the reason of the last one.
    refused: (u32, Option<KernelFailure>),
}

/// Desired content of the table; empty if it has no devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct DesiredFlowtable {
    devices: BTreeSet<String>,
    rules: Vec<FlowRule>,
}

/// A rule of the forward chain.
#[derive(Clone, Debug, PartialEq, Eq)]
enum FlowRule {
    /// Exempts a workload whose packets all have to pass the rules.
    See { interface: String, arriving: bool },
    /// Offloads the flows of workloads.
    Pass { prefix: String, arriving: bool },
}

/// The table as it is in the kernel.
struct ObservedFlowtable {
    devices: BTreeSet<String>,
    comments: Vec<String>,
}

impl FlowtableOffload {
    pub fn open(netns: &Netns) -> DataplaneResult<FlowtableOffload> {
        Ok(FlowtableOffload {
            netns: netns.clone(),
            connection: netns.nftables()?,
            wanted: DesiredFlowtable::default(),
            stale: true,
            not_before: Duration::ZERO,
            refused: (0, None),
        })
    }

    /// Returns the netlink port, which identifies our own changes in events.
    pub fn port(&self) -> u32 {
        self.connection.socket().pid()
    }

    /// Requests another read, as a program may have changed the table; not needed if there should be no table.
    pub fn invalidate(&mut self) {
        self.stale |= self.wanted != DesiredFlowtable::default();
    }

    /// Returns the reason why flows are not offloaded. A first rejection is not reported, as it may concern an
    /// interface that has just been removed.
    pub fn failure(&self) -> Option<&KernelFailure> {
        self.refused.1.as_ref().filter(|_| self.refused.0 > 1)
    }

    /// Offloads the flows of these interfaces; offloads nothing if `interfaces` is `None`.
    pub async fn converge(
        &mut self,
        interfaces: Option<&FlowInterfaces>,
        prefixes: &[String],
        now: Duration,
    ) {
        let wanted =
            interfaces.map(|interfaces| DesiredFlowtable::new(interfaces, prefixes)).unwrap_or_default();
        if self.wanted != wanted {
            self.wanted = wanted;
            (self.stale, self.not_before) = (true, now);
        }
        if !self.stale || now < self.not_before {
            return;
        }
        (self.stale, self.not_before) = (false, now + MIN_READ_INTERVAL);
        match self.write_table().await {
            Ok(()) => self.refused = (0, None),
            Err(error) => {
                self.refused = (self.refused.0.saturating_add(1), Some(error.into()));
                (self.stale, self.not_before) = (true, now + OFFLOAD_RETRY_DELAY);
            }
        }
    }

    async fn write_table(&self) -> DataplaneResult<()> {
        let transaction = self.observe().await.and_then(|observed| self.changes(observed));
        match transaction.map_err(|error| DataplaneError::kernel(FLOW_TABLE_OBJECT, &error))? {
            Some(transaction) => {
                self.netns.make(FLOW_TABLE_OBJECT, transaction.commit(&self.connection)).await
            }
            None => Ok(()),
        }
    }

    /// Reads the table if it exists.
    async fn observe(&self) -> nlink::Result<Option<ObservedFlowtable>> {
        let tables = self.connection.list_tables_in(Family::Inet).await?;
        if !tables.iter().any(|table| table.name == TABLE) {
            return Ok(None);
        }
        let flows = self.connection.list_flowtables_in(TABLE, Family::Inet).await?;
        let flows = flows.into_iter().find(|flows| flows.name == FLOWTABLE_NAME);
        let rules = self.connection.list_rules(TABLE, Family::Inet).await?;
        let comments = rules.into_iter().filter(|rule| rule.chain == CHAIN);
        Ok(Some(ObservedFlowtable {
            devices: flows.into_iter().flat_map(|flows| flows.devs).collect(),
            comments: comments.map(|rule| rule.comment_text.unwrap_or_default()).collect(),
        }))
    }

    /// Returns the transaction that is due. Flows that are already offloaded stay so when interfaces are added or
    /// removed.
    fn changes(&self, observed: Option<ObservedFlowtable>) -> nlink::Result<Option<Transaction>> {
        let DesiredFlowtable { devices, rules } = &self.wanted;
        let mut transaction = self.connection.transaction();
        if let Some(observed) = observed {
            if !devices.is_empty() && observed.has(rules) {
                return Ok(self.device_changes(&observed.devices));
            }
            transaction = transaction.del_table(TABLE, Family::Inet);
            if devices.is_empty() {
                return Ok(Some(transaction));
            }
        }
        if devices.is_empty() {
            return Ok(None);
        }
        let behind = BaseChain::filter(FilterHook::Forward, Priority::Custom(FORWARD_PRIORITY));
        transaction = transaction
            .add_table(TABLE, Family::Inet)
            .add_flowtable(&flows(devices))
            .add_chain(Chain::new(TABLE, CHAIN)?.family(Family::Inet).base(behind));
        for rule in rules {
            transaction = transaction.add_rule(rule.encode());
        }
        Ok(Some(transaction))
    }

    /// Returns the transaction that adds missing interfaces and removes surplus ones, if there are any.
    fn device_changes(&self, observed: &BTreeSet<String>) -> Option<Transaction> {
        let missing: Vec<&String> = self.wanted.devices.difference(observed).collect();
        let surplus: Vec<String> = observed.difference(&self.wanted.devices).cloned().collect();
        if missing.is_empty() && surplus.is_empty() {
            return None;
        }
        let mut transaction = self.connection.transaction();
        if !missing.is_empty() {
            transaction = transaction.update_flowtable(&flows(missing));
        }
        if !surplus.is_empty() {
            transaction = transaction.del_flowtable_devices(
                Family::Inet,
                TABLE,
                FLOWTABLE_NAME,
                INGRESS_PRIORITY,
                &surplus,
            );
        }
        Some(transaction)
    }
}

impl ObservedFlowtable {
    /// Returns whether the table differs at most in its interfaces.
    fn has(&self, rules: &[FlowRule]) -> bool {
        let comments: Vec<String> = rules.iter().map(FlowRule::comment).collect();
        !self.devices.is_empty() && self.comments == comments
    }
}

impl DesiredFlowtable {
    fn new(interfaces: &FlowInterfaces, prefixes: &[String]) -> DesiredFlowtable {
        let both = [true, false];
        let see = interfaces.seen.iter().flat_map(|interface| {
            both.map(|arriving| FlowRule::See { interface: interface.clone(), arriving })
        });
        let pass = prefixes
            .iter()
            .flat_map(|prefix| both.map(|arriving| FlowRule::Pass { prefix: prefix.clone(), arriving }));
        DesiredFlowtable { devices: interfaces.devices.clone(), rules: see.chain(pass).collect() }
    }
}

impl FlowRule {
    /// Returns the comment by which the rule is recognised.
    fn comment(&self) -> String {
        match self {
            FlowRule::See { interface, arriving: true } => format!("every packet from {interface} is seen"),
            FlowRule::See { interface, arriving: false } => format!("every packet to {interface} is seen"),
            FlowRule::Pass { prefix, arriving: true } => format!("connections from {prefix}*"),
            FlowRule::Pass { prefix, arriving: false } => format!("connections to {prefix}*"),
        }
    }

    fn encode(&self) -> Rule {
        let rule = Rule::new(TABLE, CHAIN).family(Family::Inet).comment(&self.comment());
        let known = CtState::ESTABLISHED;
        match self {
            FlowRule::See { interface, arriving: true } => rule.match_iif(interface).accept(),
            FlowRule::See { interface, arriving: false } => rule.match_oif(interface).accept(),
            FlowRule::Pass { prefix, arriving: true } => {
                rule.match_ct_state(known).match_iif_prefix(prefix).flow_offload(FLOWTABLE_NAME)
            }
            FlowRule::Pass { prefix, arriving: false } => {
                rule.match_ct_state(known).match_oif_prefix(prefix).flow_offload(FLOWTABLE_NAME)
            }
        }
    }
}

fn flows<'d>(devices: impl IntoIterator<Item = &'d String>) -> Flowtable {
    let empty = Flowtable::new(Family::Inet, TABLE, FLOWTABLE_NAME).priority(INGRESS_PRIORITY).counter(true);
    devices.into_iter().fold(empty, |flows, device| flows.device(device))
}

/// Removes the table if it exists.
pub(super) async fn remove(netns: &Netns) -> DataplaneResult<()> {
    FlowtableOffload::open(netns)?.write_table().await
}
