//! Chains of other programs (iptables, Docker, firewalld) that could drop packets which policy has allowed. A verdict
//! of our table cannot override theirs, so this module inserts a rule into each of them that accepts packets with our
//! mark.
//!
//! `observed` reads the kernel, `diff` computes the edits and `apply` commits them. Tables of iptables-legacy can only
//! be changed with its own program: `legacy`, which shares `diff`.

mod apply;
mod diff;
mod legacy;
pub mod observed;
pub mod program;

use super::render::MarkedHook;
use super::rule::{NftAction, NftField, NftMatch, NftRule, NftTest};
use crate::error::{DataplaneError, DataplaneResult};
use crate::failure::KernelFailure;
use crate::netns::Netns;
use legacy::LegacyTables;
use nlink::Connection;
use nlink::netlink::Nftables;
use std::time::Duration;

/// Minimum interval between two reads, however often other programs change their chains.
const MIN_READ_INTERVAL: Duration = Duration::from_secs(1);
/// Delay before another attempt on a chain for which the kernel rejected our rule.
const CHAIN_RETRY_DELAY: Duration = Duration::from_secs(10);

/// Comment that identifies our rules, even after another program has saved and restored them.
const ACCEPT_RULE_COMMENT: &str = "tortie: allowed by policy";
/// Prefix of kube-proxy's chains, which match service addresses and reject packets to services without endpoints. They
/// stay first, as in Calico: packets that they reject have no destination.
const KUBE_PROXY_CHAIN_PREFIX: &str = "KUBE-";
/// The table of kube-proxy in its nftables mode.
const KUBE_PROXY_TABLE: &str = "kube-proxy";

/// Returns the mark of packets that policy allows; 0 if no packets are marked, in which case all our rules are removed.
fn bits(allowed: &[MarkedHook]) -> u32 {
    allowed.first().map(|place| place.bits).unwrap_or_default()
}

/// Returns the rule for foreign chains.
fn accepting(bits: u32) -> NftRule {
    let allowed = NftMatch::new(NftField::Mark, NftTest::All(bits));
    NftRule::new(vec![allowed], vec![NftAction::Count, NftAction::Accept]).says(ACCEPT_RULE_COMMENT)
}

pub struct ForeignChains {
    connection: Connection<Nftables>,
    legacy: LegacyTables,
    /// Hooks and priorities at which packets carry the mark.
    allowed: Vec<MarkedHook>,
    /// Whether the chains have to be read again.
    stale: bool,
    not_before: Duration,
    failures: Vec<KernelFailure>,
    /// Chains that may drop forwarded packets where our rule cannot help.
    overruling: Vec<KernelFailure>,
}

impl ForeignChains {
    pub fn open(netns: &Netns) -> DataplaneResult<ForeignChains> {
        Ok(ForeignChains {
            connection: netns.nftables()?,
            legacy: LegacyTables::new(netns.clone()),
            allowed: Vec::new(),
            stale: true,
            not_before: Duration::ZERO,
            failures: Vec::new(),
            overruling: Vec::new(),
        })
    }

    /// Returns the netlink port, which identifies our own changes in events.
    pub fn port(&self) -> u32 {
        self.connection.socket().pid()
    }

    /// Requests another read, as a program may have changed a chain.
    pub fn invalidate(&mut self) {
        self.stale = true;
    }

    /// Returns the chains that may drop packets which policy allows: our rule could not be written, or does not apply
    /// there.
    pub fn failures(&self) -> Vec<KernelFailure> {
        self.failures.iter().chain(&self.overruling).chain(self.legacy.failures()).cloned().collect()
    }

    /// Ensures that our rule exists exactly in the chains where packets carry the mark.
    pub async fn converge(&mut self, allowed: &[MarkedHook], now: Duration) {
        if self.allowed != allowed {
            self.allowed = allowed.to_vec();
            (self.stale, self.not_before) = (true, now);
            self.legacy.invalidate();
        }
        if self.stale && now >= self.not_before {
            (self.stale, self.not_before) = (false, now + MIN_READ_INTERVAL);
            (self.failures, self.overruling) = match self.write_rules().await {
                Ok(failures) => failures,
                Err(error) => (vec![error.into()], Vec::new()),
            };
            if !self.failures.is_empty() {
                (self.stale, self.not_before) = (true, now + CHAIN_RETRY_DELAY);
            }
        }
        self.legacy.converge(&self.allowed, now).await;
    }

    /// Writes our rule. Returns the chains that rejected it, and those that drop packets at other places.
    async fn write_rules(&self) -> DataplaneResult<(Vec<KernelFailure>, Vec<KernelFailure>)> {
        let (mut failures, mut overruling) = (Vec::new(), Vec::new());
        let bits = bits(&self.allowed);
        let chains = observed::base_chains(&self.connection).await;
        for chain in chains.map_err(|error| DataplaneError::kernel("chains of others", &error))? {
            if let Some(reason) = chain.overrules(&self.allowed) {
                overruling.push(DataplaneError::Kernel { object: chain.object(), reason }.into());
            }
            let edits = diff::edits(&chain.kinds(bits), chain.drops, chain.is_behind(&self.allowed));
            if edits.is_empty() {
                continue;
            }
            match apply::commit(&self.connection, &chain, &edits, bits).await {
                Ok(()) => tracing::info!(chain = %chain.object(), ?edits, "changed our rule in this chain"),
                Err(error) => failures.push(DataplaneError::kernel(chain.object(), &error).into()),
            }
        }
        Ok((failures, overruling))
    }
}

/// Removes our rules from the chains of other programs.
pub(super) async fn remove(netns: &Netns) -> DataplaneResult<()> {
    let mut foreign = ForeignChains::open(netns)?;
    foreign.converge(&[], Duration::ZERO).await;
    match foreign.failures().pop() {
        Some(KernelFailure { object, reason, .. }) => {
            Err(DataplaneError::Kernel { object, reason: reason.to_string() })
        }
        None => Ok(()),
    }
}
