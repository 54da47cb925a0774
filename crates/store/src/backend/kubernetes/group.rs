//! API group in which a cluster stores Calico's objects, and the names of their kinds there.

use tortie_model::Kind;

/// Older installations store the objects in crd.projectcalico.org/v1 and serve projectcalico.org/v3 from an aggregated
/// API server; newer ones store projectcalico.org/v3 directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalicoApiGroup {
    /// crd.projectcalico.org/v1
    V1,
    /// projectcalico.org/v3
    V3,
}

impl CalicoApiGroup {
    /// Parses the configured group (CALICO_API_GROUP).
    pub fn parse(configured: &str) -> CalicoApiGroup {
        let is_v3 = configured.eq_ignore_ascii_case(CalicoApiGroup::V3.api_version());
        if is_v3 { CalicoApiGroup::V3 } else { CalicoApiGroup::V1 }
    }

    /// Groups in order of preference: a cluster with both stores the objects in the first and serves the second from
    /// it.
    pub const BY_PREFERENCE: [CalicoApiGroup; 2] = [CalicoApiGroup::V1, CalicoApiGroup::V3];

    pub const fn api_version(self) -> &'static str {
        match self {
            CalicoApiGroup::V1 => "crd.projectcalico.org/v1",
            CalicoApiGroup::V3 => "projectcalico.org/v3",
        }
    }

    /// Returns the `kind` field of a stored object.
    pub fn kind_name(self, kind: Kind) -> &'static str {
        match (self, kind) {
            (CalicoApiGroup::V1, Kind::IPAMConfiguration) => "IPAMConfig",
            _ => kind.name(),
        }
    }

    /// Returns the path of a collection, in one namespace or in all.
    pub fn collection(self, kind: Kind, namespace: Option<&str>) -> String {
        let plural = match (self, kind) {
            (CalicoApiGroup::V1, Kind::IPAMConfiguration) => "ipamconfigs",
            _ => kind.plural(),
        };
        match namespace.filter(|_| kind.is_namespaced()) {
            Some(namespace) => format!("/apis/{}/namespaces/{namespace}/{plural}", self.api_version()),
            None => format!("/apis/{}/{plural}", self.api_version()),
        }
    }

    /// Returns whether the kind has a status subresource.
    pub fn has_status_subresource(self, kind: Kind) -> bool {
        self == CalicoApiGroup::V3
            && matches!(
                kind,
                Kind::CalicoNodeStatus | Kind::IPPool | Kind::KubeControllersConfiguration | Kind::Tier
            )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configured_group_is_parsed() {
        assert_eq!(CalicoApiGroup::parse("ProjectCalico.org/V3"), CalicoApiGroup::V3);
        assert_eq!(CalicoApiGroup::parse("crd.projectcalico.org/v1"), CalicoApiGroup::V1);
    }

    #[test]
    fn collections_are_where_other_clients_look() {
        assert_eq!(
            CalicoApiGroup::V1.collection(Kind::IPPool, None),
            "/apis/crd.projectcalico.org/v1/ippools"
        );
        assert_eq!(
            CalicoApiGroup::V3.collection(Kind::NetworkPolicy, Some("prod")),
            "/apis/projectcalico.org/v3/namespaces/prod/networkpolicies"
        );
        assert_eq!(
            CalicoApiGroup::V3.collection(Kind::NetworkPolicy, None),
            "/apis/projectcalico.org/v3/networkpolicies"
        );
        assert_eq!(
            CalicoApiGroup::V1.collection(Kind::IPAMConfiguration, None),
            "/apis/crd.projectcalico.org/v1/ipamconfigs"
        );
        assert_eq!(CalicoApiGroup::V3.kind_name(Kind::IPAMConfiguration), "IPAMConfiguration");
        assert_eq!(CalicoApiGroup::V1.kind_name(Kind::IPAMConfiguration), "IPAMConfig");
    }
}
