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
    /// Returns the access request for the tier itself, which must be allowed.
    pub fn request_tier(&self) -> AccessRequest {
        build_request("get", "tiers", "", self.tier)
    }

    /// Returns the access requests for the policy and for all policies of the tier, of which one must be allowed.
    pub fn request_policies(&self) -> Vec<AccessRequest> {
        let resource = format!("tier.{}", self.served.kind.plural());
        let all = format!("{}.*", self.tier);
        let names = [self.name, all.as_str()].into_iter().filter(|name| !name.is_empty());
        names.map(|name| build_request(self.verb.name(), &resource, self.namespace, name)).collect()
    }

    /// Returns the error message for a user without permission on the tier.
    pub fn explain_refusal(&self, user: &str, missing: MissingTierPermission) -> String {
        let mut text = format!(
            "User {user:?} cannot {} {} in tier {:?}",
            self.verb.name(),
            self.served.qualified_name(),
            self.tier
        );
        if !self.namespace.is_empty() {
            text.push_str(&format!(" and namespace {:?}", self.namespace));
        }
        if missing == MissingTierPermission::Tier {
            text.push_str(" (user cannot get tier)");
        }
        text
    }
}

/// Returns the error message for a user without permission on any tier.
pub fn explain_no_tier(user: &str, verb: RequestVerb, served: ServedKind) -> String {
    format!(
        "operation on Calico tiered policy is forbidden: User {user:?} cannot {} {} in any tier",
        verb.name(),
        served.qualified_name()
    )
}

fn build_request(verb: &str, resource: &str, namespace: &str, name: &str) -> AccessRequest {
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
        assert_eq!(one.request_tier(), build_request("get", "tiers", "", "t"));
        assert_eq!(
            one.request_policies(),
            [
                build_request("delete", "tier.networkpolicies", "shop", "web"),
                build_request("delete", "tier.networkpolicies", "shop", "t.*")
            ]
        );
        assert_eq!(
            one.explain_refusal("jane", MissingTierPermission::Tier),
            "User \"jane\" cannot delete networkpolicies.projectcalico.org in tier \"t\" and namespace \"shop\" (user cannot get tier)"
        );
        let all = TierAccess { verb: RequestVerb::Watch, namespace: "", name: "", ..one };
        assert_eq!(all.request_policies(), [build_request("watch", "tier.networkpolicies", "", "t.*")]);
        assert_eq!(
            all.explain_refusal("jane", MissingTierPermission::Policies),
            "User \"jane\" cannot watch networkpolicies.projectcalico.org in tier \"t\""
        );
    }
}
