//! The proxy entries in the kernel, and the interfaces that are configured for them.

use super::super::DataplaneCore;
use super::desired::ProxyFamily;
use crate::failure::KernelObject;
use crate::kernel::ProxyEntry;
use std::collections::BTreeSet;

#[derive(Debug, Default)]
pub(crate) struct ObservedProxies {
    pub there: BTreeSet<ProxyEntry>,
    /// Interfaces that have the settings whose values the kernel does not report.
    pub prepared: BTreeSet<(u32, ProxyFamily)>,
    /// Objects that the kernel rejected at the last attempt.
    pub refused: Vec<(KernelObject, String)>,
}

impl DataplaneCore {
    /// Replaces the known proxy entries.
    pub fn proxies_are(&mut self, proxies: Vec<ProxyEntry>) {
        self.proxies.there = proxies.into_iter().collect();
    }

    /// Whether proxy entries exist or are desired. The kernel sends no notifications about such entries.
    pub fn uses_proxies(&self) -> bool {
        !self.plan.proxied().is_empty() || !self.proxies.there.is_empty()
    }
}
