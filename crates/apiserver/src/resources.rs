//! The served resources and their properties.

use serde_json::Value;
use std::sync::LazyLock;
use tortie_apply::{FieldSet, MergeSchema};
use tortie_model::{Kind, schema};

pub const GROUP: &str = "projectcalico.org";
pub const VERSION: &str = "v3";
pub const API_VERSION: &str = tortie_model::API_VERSION;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServedKind {
    pub kind: Kind,
    pub short_names: &'static [&'static str],
}

const fn declare_kind(kind: Kind, short_names: &'static [&'static str]) -> ServedKind {
    ServedKind { kind, short_names }
}

pub const SERVED_RESOURCES: &[ServedKind] = &[
    declare_kind(Kind::BGPConfiguration, &["bgpconfig", "bgpconfigs"]),
    declare_kind(Kind::BGPFilter, &[]),
    declare_kind(Kind::BGPPeer, &[]),
    declare_kind(Kind::BlockAffinity, &["blockaffinity", "affinity", "affinities"]),
    declare_kind(Kind::CalicoNodeStatus, &["caliconodestatus"]),
    declare_kind(Kind::ClusterInformation, &["clusterinfo"]),
    declare_kind(Kind::FelixConfiguration, &["felixconfig", "felixconfigs"]),
    declare_kind(Kind::GlobalNetworkPolicy, &["gnp", "cgnp", "calicoglobalnetworkpolicies"]),
    declare_kind(Kind::GlobalNetworkSet, &[]),
    declare_kind(Kind::HostEndpoint, &["hep", "heps"]),
    declare_kind(Kind::IPAMConfiguration, &["ipamconfig"]),
    declare_kind(Kind::IPPool, &[]),
    declare_kind(Kind::IPReservation, &[]),
    declare_kind(Kind::KubeControllersConfiguration, &["kcconfig"]),
    declare_kind(Kind::NetworkPolicy, &["cnp", "caliconetworkpolicy", "caliconetworkpolicies"]),
    declare_kind(Kind::NetworkSet, &["netsets"]),
    declare_kind(Kind::Profile, &[]),
    declare_kind(Kind::StagedGlobalNetworkPolicy, &["sgnp"]),
    declare_kind(Kind::StagedKubernetesNetworkPolicy, &["sknp"]),
    declare_kind(Kind::StagedNetworkPolicy, &["snp"]),
    declare_kind(Kind::Tier, &[]),
];

/// Schemas of a kind, computed once.
struct ResourceSchema {
    kind: Kind,
    schema: Value,
    merge_schema: MergeSchema,
}

static RESOURCE_SCHEMAS: LazyLock<Vec<ResourceSchema>> = LazyLock::new(|| {
    let schemas = SERVED_RESOURCES.iter().map(|served| {
        let schema = schema::json_schema(served.kind);
        ResourceSchema { kind: served.kind, merge_schema: MergeSchema::from_object_schema(&schema), schema }
    });
    schemas.collect()
});

static EMPTY_SCHEMA: LazyLock<ResourceSchema> = LazyLock::new(|| ResourceSchema {
    kind: Kind::Node,
    schema: Value::Null,
    merge_schema: MergeSchema::Any,
});
static STATUS_FIELDS: LazyLock<FieldSet> = LazyLock::new(|| FieldSet::from_names(&[&["status"]]));
static SPEC_FIELDS: LazyLock<FieldSet> = LazyLock::new(|| FieldSet::from_names(&[&["spec"]]));
static NO_FIELDS: LazyLock<FieldSet> = LazyLock::new(FieldSet::default);

impl ServedKind {
    /// Returns the resource with this plural name.
    pub fn find(plural: &str) -> Option<ServedKind> {
        SERVED_RESOURCES.iter().copied().find(|served| served.kind.plural() == plural)
    }

    /// Returns the qualified name, such as `tiers.projectcalico.org`.
    pub fn qualified_name(self) -> String {
        format!("{}.{GROUP}", self.kind.plural())
    }

    /// Returns whether objects belong to a tier, which controls the access to them.
    pub fn is_tiered(self) -> bool {
        matches!(
            self.kind,
            Kind::NetworkPolicy
                | Kind::GlobalNetworkPolicy
                | Kind::StagedNetworkPolicy
                | Kind::StagedGlobalNetworkPolicy
        )
    }

    /// Returns whether the kind has a status subresource.
    pub fn has_status(self) -> bool {
        matches!(
            self.kind,
            Kind::CalicoNodeStatus | Kind::IPPool | Kind::KubeControllersConfiguration | Kind::Tier
        )
    }

    /// Returns whether users can only read the kind: ClusterInformation is written by nodes and controllers.
    pub fn is_read_only(self) -> bool {
        self.kind == Kind::ClusterInformation
    }

    fn find_schema(self) -> &'static ResourceSchema {
        RESOURCE_SCHEMAS.iter().find(|known| known.kind == self.kind).unwrap_or(&EMPTY_SCHEMA)
    }

    pub fn schema(self) -> &'static Value {
        &self.find_schema().schema
    }

    pub fn merge_schema(self) -> &'static MergeSchema {
        &self.find_schema().merge_schema
    }

    /// Returns the fields that a write ignores. `to_status` is whether the write is to the status subresource.
    pub fn reset_fields(self, to_status: bool) -> &'static FieldSet {
        match (self.has_status(), to_status) {
            (false, _) => &NO_FIELDS,
            (true, false) => &STATUS_FIELDS,
            (true, true) => &SPEC_FIELDS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_names_are_unique() {
        let mut names: Vec<String> = Vec::new();
        for served in SERVED_RESOURCES {
            names.push(served.kind.plural().to_owned());
            names.push(served.kind.name().to_lowercase());
            names.extend(served.short_names.iter().map(|name| (*name).to_owned()));
        }
        names.sort();
        let repeated: Vec<&[String]> = names.windows(2).filter(|pair| pair[0] == pair[1]).collect();
        // Short names of Calico that equal the singular name.
        let allowed = ["blockaffinity", "caliconodestatus"];
        assert!(repeated.iter().all(|pair| allowed.contains(&pair[0].as_str())), "{repeated:?}");
    }

    #[test]
    fn every_resource_has_a_schema() {
        for served in SERVED_RESOURCES {
            assert!(served.schema().pointer("/properties/spec").is_some(), "{}", served.kind);
            assert!(matches!(served.merge_schema(), MergeSchema::Map { .. }), "{}", served.kind);
        }
    }
}
