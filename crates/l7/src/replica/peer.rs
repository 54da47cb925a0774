//! The authenticated peer of a request, compared with the labels that the replica has.

use super::Replica;
use crate::principal::ServiceAccountPrincipal;
use std::collections::{BTreeMap, HashMap};
use tortie_model::selector::LabelLookup;
use tortie_plan::PeerMatch;
use tortie_plan::evaluate::PeerIdentity;

/// A service account that the proxy has authenticated.
pub struct ReplicaPeer<'r> {
    replica: &'r Replica,
    principal: ServiceAccountPrincipal<'r>,
    labels: PeerLabelSources<'r>,
}

/// Labels of a service account: those that the node sent, then those in the request.
struct PeerLabelSources<'r> {
    sent: Option<&'r BTreeMap<String, String>>,
    requested: &'r HashMap<String, String>,
}

impl LabelLookup for PeerLabelSources<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let sent = self.sent.and_then(|labels| labels.get(key));
        sent.or_else(|| self.requested.get(key)).map(String::as_str)
    }
}

/// The labels of a namespace that the node did not send.
struct NoLabels;

impl LabelLookup for NoLabels {
    fn get(&self, _: &str) -> Option<&str> {
        None
    }
}

impl Replica {
    /// Returns the peer with this identity. `requested` are the labels that the proxy reports.
    pub fn peer<'r>(
        &'r self,
        principal: ServiceAccountPrincipal<'r>,
        requested: &'r HashMap<String, String>,
    ) -> ReplicaPeer<'r> {
        let accounts = self.service_accounts.get(principal.namespace);
        let sent = accounts.and_then(|accounts| accounts.get(principal.account)).map(|labels| &**labels);
        ReplicaPeer { replica: self, principal, labels: PeerLabelSources { sent, requested } }
    }
}

impl PeerIdentity for ReplicaPeer<'_> {
    fn matches(&self, peer: &PeerMatch, policy_namespace: &str) -> bool {
        self.matches_account(peer) && self.matches_namespace(peer, policy_namespace)
    }
}

impl ReplicaPeer<'_> {
    fn matches_account(&self, peer: &PeerMatch) -> bool {
        let names = &peer.service_accounts;
        (names.is_empty() || names.iter().any(|name| name == self.principal.account))
            && self.matches_selector(&peer.service_account_selector, &self.labels)
    }

    fn matches_namespace(&self, peer: &PeerMatch, policy_namespace: &str) -> bool {
        if peer.namespace_selector.is_empty() {
            let selects_pods = !peer.selector.is_empty() || !peer.not_selector.is_empty();
            let selects_accounts =
                !peer.service_accounts.is_empty() || !peer.service_account_selector.is_empty();
            // Without a namespace selector, these select pods in the namespace of the policy.
            let is_local = !policy_namespace.is_empty() && (selects_pods || selects_accounts);
            return !is_local || self.principal.namespace == policy_namespace;
        }
        match self.replica.namespaces.get(self.principal.namespace) {
            Some(labels) => self.matches_selector(&peer.namespace_selector, &**labels),
            None => self.matches_selector(&peer.namespace_selector, &NoLabels),
        }
    }

    /// Returns whether labels match a selector; an empty text matches all labels. Hardening has removed rules with
    /// selectors that cannot be parsed.
    fn matches_selector<L: LabelLookup>(&self, text: &str, labels: &L) -> bool {
        if text.is_empty() {
            return true;
        }
        let Some(selector) = self.replica.selectors.get(text) else { return false };
        // `global()` selects endpoints without a namespace, which service accounts always have.
        !selector.uses_global() && selector.matches(labels)
    }
}
