//! The kinds of cluster policies in the Kubernetes API group policy.networking.k8s.io, and the name prefix of the
//! GlobalNetworkPolicies derived from each kind.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterPolicyKind {
    ClusterNetworkPolicy,
    AdminNetworkPolicy,
    BaselineAdminNetworkPolicy,
}

impl ClusterPolicyKind {
    pub const ALL: [ClusterPolicyKind; 3] = [
        ClusterPolicyKind::ClusterNetworkPolicy,
        ClusterPolicyKind::AdminNetworkPolicy,
        ClusterPolicyKind::BaselineAdminNetworkPolicy,
    ];
    /// The name prefixes of the derived policies.
    pub const NAME_PREFIXES: [&str; 3] =
        [Self::ALL[0].name_prefix(), Self::ALL[1].name_prefix(), Self::ALL[2].name_prefix()];

    /// Returns the kind and the name of the object from which a GlobalNetworkPolicy of this name is derived.
    pub fn find_origin(policy: &str) -> Option<(ClusterPolicyKind, &str)> {
        Self::ALL.into_iter().find_map(|kind| Some((kind, policy.strip_prefix(kind.name_prefix())?)))
    }

    /// Returns the name prefix of the derived policies.
    pub const fn name_prefix(self) -> &'static str {
        match self {
            ClusterPolicyKind::ClusterNetworkPolicy => "kcnp.",
            ClusterPolicyKind::AdminNetworkPolicy => "kanp.",
            ClusterPolicyKind::BaselineAdminNetworkPolicy => "kbanp.",
        }
    }

    /// Returns the value of the `kind` field.
    pub fn name(self) -> &'static str {
        match self {
            ClusterPolicyKind::ClusterNetworkPolicy => "ClusterNetworkPolicy",
            ClusterPolicyKind::AdminNetworkPolicy => "AdminNetworkPolicy",
            ClusterPolicyKind::BaselineAdminNetworkPolicy => "BaselineAdminNetworkPolicy",
        }
    }

    /// Returns the path of the collection in the Kubernetes API.
    pub fn api_path(self) -> &'static str {
        match self {
            ClusterPolicyKind::ClusterNetworkPolicy => {
                "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies"
            }
            ClusterPolicyKind::AdminNetworkPolicy => {
                "/apis/policy.networking.k8s.io/v1alpha1/adminnetworkpolicies"
            }
            ClusterPolicyKind::BaselineAdminNetworkPolicy => {
                "/apis/policy.networking.k8s.io/v1alpha1/baselineadminnetworkpolicies"
            }
        }
    }
}
