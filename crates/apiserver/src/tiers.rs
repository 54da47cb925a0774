//! Permissions on the policies of a tier: the access requests and the error messages. `access` evaluates them.
//!
//! To access a policy of a tier, a user needs `get` on the tier and the verb on the pseudo-resource
//! `tier.<resource>`, for the policy's name or for the whole tier (`<tier>.*`).

use crate::request::RequestVerb;
use crate::resources::{GROUP, ServedKind};
use tortie_store::orchestrator::AccessRequest;

/// An access to policies of a tier.
#[derive(Clone, Copy, Debug)]
pub struct TierAccess<'a> {
    pub served: ServedKind,
    pub verb: RequestVerb,
    pub namespace: &'a str,
    /// Name in the request; empty for collections.
    pub name: &'a str,
    pub tier: &'a str,
}

/// The permission that the user lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingTierPermission {
    /// `get` on the tier.
    Tier,
    /// The verb on the policies of the tier.
    Policies,
}

impl TierAccess<'_> {
    /// Returns the access request that must be allowed.
    pub fn see_tier(&self) -> AccessRequest {
        wish("get", "tiers", "", self.tier)
    }

    /// Returns the access requests of which one must be allowed.
    pub fn touch_policies(&self) -> Vec<AccessRequest> {
        let resource = format!("tier.{}", self.served.kind.plural());
        let all = format!("{}.*", self.tier);
        let names = [self.name, all.as_str()].into_iter().filter(|name| !name.is_empty());
        names.map(|name| wish(self.verb.name(), &resource, self.namespace, name)).collect()
    }

    /// Returns the error message for a user without permission on the tier.
    pub fn refusal(&self, user: &str, lacking: MissingTierPermission) -> String {
        let mut text = format!(
            "User {user:?} cannot {} {} in tier {:?}",
            self.verb.name(),
            self.served.qualified(),
            self.tier
        );
        if !self.namespace.is_empty() {
            text.push_str(&format!(" and namespace {:?}", self.namespace));
        }
        if lacking == MissingTierPermission::Tier {
            text.push_str(" (user cannot get tier)");
        }
        text
    }
}

/// Returns the error message for a user without permission on any tier.
pub fn no_tier(user: &str, verb: RequestVerb, served: ServedKind) -> String {
    format!(
        "operation on Calico tiered policy is forbidden: User {user:?} cannot {} {} in any tier",
        verb.name(),
        served.qualified()
    )
}

fn wish(verb: &str, resource: &str, namespace: &str, name: &str) -> AccessRequest {
    AccessRequest::Resource {
        verb: verb.to_owned(),
        group: GROUP.to_owned(),
        resource: resource.to_owned(),
        subresource: String::new(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tortie_model::Kind;

    #[test]
    fn access_needs_the_tier_and_its_policies() {
        let served = ServedKind::find(Kind::NetworkPolicy.plural()).unwrap();
        let one = TierAccess { served, verb: RequestVerb::Delete, namespace: "shop", name: "web", tier: "t" };
        assert_eq!(one.see_tier(), wish("get", "tiers", "", "t"));
        assert_eq!(
            one.touch_policies(),
            [
                wish("delete", "tier.networkpolicies", "shop", "web"),
                wish("delete", "tier.networkpolicies", "shop", "t.*")
            ]
        );
        assert_eq!(
            one.refusal("jane", MissingTierPermission::Tier),
            "User \"jane\" cannot delete networkpolicies.projectcalico.org in tier \"t\" and namespace \"shop\" (user cannot get tier)"
        );
        let all = TierAccess { verb: RequestVerb::Watch, namespace: "", name: "", ..one };
        assert_eq!(all.touch_policies(), [wish("watch", "tier.networkpolicies", "", "t.*")]);
        assert_eq!(
            all.refusal("jane", MissingTierPermission::Policies),
            "User \"jane\" cannot watch networkpolicies.projectcalico.org in tier \"t\""
        );
    }
}
