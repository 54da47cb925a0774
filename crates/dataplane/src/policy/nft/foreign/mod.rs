//! Chains of others that could drop what policy has allowed: iptables', Docker's, firewalld's. No verdict of our table
//! overrules theirs, so a rule of ours stands in each of them and accepts what has our mark.
//!
//! `observed` is what the kernel has, `diff` what has to be done about it, `apply` does it. Tables of iptables-legacy are
//! reached through its program alone: `legacy`, which shares `diff`.

mod apply;
mod diff;
mod legacy;
pub(crate) mod observed;
pub(crate) mod program;

use super::render::Allowed;
use super::rule::{Action, Field, Match, Rule, Test};
use crate::error::{Error, Result};
use crate::failure::Failure;
use crate::netns::Netns;
use legacy::Legacy;
use nlink::Connection;
use nlink::netlink::Nftables;
use std::time::Duration;

/// Between two looks, however often others change their chains.
const PAUSE: Duration = Duration::from_secs(1);
/// Before a chain that refused our rule is tried again.
const RETRY: Duration = Duration::from_secs(10);

/// By which our rules are known, also after somebody has saved and restored them.
const COMMENT: &str = "tortie: allowed by policy";
/// Chains that say which services there are, and turn away who asks for others. They come first, as with the reference:
/// what they reject has no place to go to.
const SERVICES: &str = "KUBE-";
/// The table in which kube-proxy does the same.
const SERVICES_TABLE: &str = "kube-proxy";

/// The mark of what policy allows; where nothing is marked, our rules go, whatever they ask for.
fn bits(allowed: &[Allowed]) -> u32 {
    allowed.first().map(|place| place.bits).unwrap_or_default()
}

/// What stands in the chains of others.
fn accepting(bits: u32) -> Rule {
    let allowed = Match::new(Field::Mark, Test::All(bits));
    Rule::new(vec![allowed], vec![Action::Count, Action::Accept]).says(COMMENT)
}

pub(crate) struct Foreign {
    connection: Connection<Nftables>,
    legacy: Legacy,
    /// Where packets have the mark.
    allowed: Vec<Allowed>,
    /// The chains have to be read.
    stale: bool,
    not_before: Duration,
    failures: Vec<Failure>,
}

impl Foreign {
    pub fn open(netns: &Netns) -> Result<Foreign> {
        Ok(Foreign {
            connection: netns.nftables()?,
            legacy: Legacy::new(netns.clone()),
            allowed: Vec::new(),
            stale: true,
            not_before: Duration::ZERO,
            failures: Vec::new(),
        })
    }

    /// The number by which events name what we did.
    pub fn port(&self) -> u32 {
        self.connection.socket().pid()
    }

    /// Somebody may have changed a chain.
    pub fn invalidate(&mut self) {
        self.stale = true;
    }

    /// Chains in which our rule should stand and does not: what policy allows may be dropped there.
    pub fn failures(&self) -> Vec<Failure> {
        self.failures.iter().chain(self.legacy.failures()).cloned().collect()
    }

    /// Has our rule stand where packets have the mark, and nowhere else.
    pub async fn converge(&mut self, allowed: &[Allowed], now: Duration) {
        if self.allowed != allowed {
            self.allowed = allowed.to_vec();
            (self.stale, self.not_before) = (true, now);
            self.legacy.invalidate();
        }
        if self.stale && now >= self.not_before {
            (self.stale, self.not_before) = (false, now + PAUSE);
            self.failures = match self.settle().await {
                Ok(failures) => failures,
                Err(error) => vec![error.into()],
            };
            if !self.failures.is_empty() {
                (self.stale, self.not_before) = (true, now + RETRY);
            }
        }
        self.legacy.converge(&self.allowed, now).await;
    }

    async fn settle(&self) -> Result<Vec<Failure>> {
        let (mut failures, bits) = (Vec::new(), bits(&self.allowed));
        for chain in observed::base_chains(&self.connection).await? {
            let edits = diff::edits(&chain.kinds(bits), chain.drops, chain.is_behind(&self.allowed));
            if edits.is_empty() {
                continue;
            }
            match apply::commit(&self.connection, &chain, &edits, bits).await {
                Ok(()) => tracing::info!(chain = %chain.object(), ?edits, "what policy allows, there"),
                Err(error) => failures.push(Error::kernel(chain.object(), &error).into()),
            }
        }
        Ok(failures)
    }
}

/// Takes our rules out of the chains of others.
pub(super) async fn remove(netns: &Netns) -> Result<()> {
    let mut foreign = Foreign::open(netns)?;
    foreign.converge(&[], Duration::ZERO).await;
    match foreign.failures().pop() {
        Some(Failure { object, reason, .. }) => Err(Error::Kernel { object, reason }),
        None => Ok(()),
    }
}
