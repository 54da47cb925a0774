//! The proxy entries that the kernel has, and which interfaces are prepared for them.

use super::super::Core;
use super::desired::Family;
use crate::failure::KernelObject;
use crate::kernel::ProxyEntry;
use std::collections::BTreeSet;

#[derive(Debug, Default)]
pub(crate) struct Proxies {
    pub there: BTreeSet<ProxyEntry>,
    /// Interfaces that have the settings of which the kernel does not tell the value.
    pub prepared: BTreeSet<(u32, Family)>,
    /// What the kernel refused at the last attempt.
    pub refused: Vec<(KernelObject, String)>,
}

impl Core {
    /// Takes a fresh list of proxy entries in.
    pub fn proxies_are(&mut self, proxies: Vec<ProxyEntry>) {
        self.proxies.there = proxies.into_iter().collect();
    }

    /// Whether there is anything to look at. The kernel does not tell when such entries come or go.
    pub fn uses_proxies(&self) -> bool {
        !self.plan.proxied().is_empty() || !self.proxies.there.is_empty()
    }
}
