//! The API group in which a cluster keeps Calico's objects, and what their kinds are called there.

use tortie_model::Kind;

/// Older installations keep them out of people's sight and serve projectcalico.org/v3 from an API server of their own;
/// newer ones keep what people write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiGroup {
    /// crd.projectcalico.org/v1
    V1,
    /// projectcalico.org/v3
    V3,
}

pub const V1_GROUP: &str = "crd.projectcalico.org";
pub const V3_GROUP: &str = "projectcalico.org";

impl ApiGroup {
    /// What was configured (CALICO_API_GROUP) decides; otherwise the groups that the cluster serves, if it said.
    pub fn choose(configured: &str, served: Option<&[String]>) -> ApiGroup {
        if !configured.is_empty() {
            let v3 = configured.eq_ignore_ascii_case(ApiGroup::V3.api_version());
            return if v3 { ApiGroup::V3 } else { ApiGroup::V1 };
        }
        let serves = |group: &str| served.is_some_and(|groups| groups.iter().any(|name| name == group));
        if serves(V3_GROUP) && !serves(V1_GROUP) { ApiGroup::V3 } else { ApiGroup::V1 }
    }

    pub const fn api_version(self) -> &'static str {
        match self {
            ApiGroup::V1 => "crd.projectcalico.org/v1",
            ApiGroup::V3 => "projectcalico.org/v3",
        }
    }

    /// The `kind` field of a stored object.
    pub fn kind_name(self, kind: Kind) -> &'static str {
        match (self, kind) {
            (ApiGroup::V1, Kind::IPAMConfiguration) => "IPAMConfig",
            _ => kind.name(),
        }
    }

    /// The collection's path: of one namespace, or of all.
    pub fn collection(self, kind: Kind, namespace: Option<&str>) -> String {
        let plural = match (self, kind) {
            (ApiGroup::V1, Kind::IPAMConfiguration) => "ipamconfigs",
            _ => kind.plural(),
        };
        match namespace.filter(|_| kind.is_namespaced()) {
            Some(namespace) => format!("/apis/{}/namespaces/{namespace}/{plural}", self.api_version()),
            None => format!("/apis/{}/{plural}", self.api_version()),
        }
    }

    /// Whether the status is written on its own.
    pub fn has_status_subresource(self, kind: Kind) -> bool {
        self == ApiGroup::V3
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
    fn the_setting_decides_and_then_what_is_served() {
        let served = |groups: &[&str]| groups.iter().map(|&group| group.to_owned()).collect::<Vec<_>>();
        for (configured, groups, expected) in [
            ("projectcalico.org/v3", None, ApiGroup::V3),
            ("ProjectCalico.org/V3", Some(served(&[V1_GROUP])), ApiGroup::V3),
            ("crd.projectcalico.org/v1", Some(served(&[V3_GROUP])), ApiGroup::V1),
            ("anything", Some(served(&[V3_GROUP])), ApiGroup::V1),
            ("", Some(served(&["apps", V3_GROUP])), ApiGroup::V3),
            ("", Some(served(&[V1_GROUP, V3_GROUP])), ApiGroup::V1),
            ("", Some(served(&[V1_GROUP])), ApiGroup::V1),
            ("", Some(served(&[])), ApiGroup::V1),
            ("", None, ApiGroup::V1),
        ] {
            assert_eq!(ApiGroup::choose(configured, groups.as_deref()), expected, "{configured} {groups:?}");
        }
    }

    #[test]
    fn collections_are_where_other_clients_look() {
        assert_eq!(ApiGroup::V1.collection(Kind::IPPool, None), "/apis/crd.projectcalico.org/v1/ippools");
        assert_eq!(
            ApiGroup::V3.collection(Kind::NetworkPolicy, Some("prod")),
            "/apis/projectcalico.org/v3/namespaces/prod/networkpolicies"
        );
        assert_eq!(
            ApiGroup::V3.collection(Kind::NetworkPolicy, None),
            "/apis/projectcalico.org/v3/networkpolicies"
        );
        assert_eq!(
            ApiGroup::V1.collection(Kind::IPAMConfiguration, None),
            "/apis/crd.projectcalico.org/v1/ipamconfigs"
        );
        assert_eq!(ApiGroup::V3.kind_name(Kind::IPAMConfiguration), "IPAMConfiguration");
        assert_eq!(ApiGroup::V1.kind_name(Kind::IPAMConfiguration), "IPAMConfig");
    }
}
