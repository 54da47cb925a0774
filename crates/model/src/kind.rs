//! The table of resource kinds: name, plural, scope, and the aliases that the command line accepts.

use std::fmt;

/// Whether objects of a kind belong to a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    Cluster,
    Namespaced,
}

macro_rules! kinds {
    ($($kind:ident $plural:literal $scope:ident [$($alias:literal)*] [$($short:literal)*];)*) => {
        /// Every kind of resource that can be stored.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind { $($kind,)* }

        impl Kind {
            /// All kinds, in the order of the table.
            pub const ALL: &'static [Kind] = &[$(Kind::$kind,)*];

            /// Returns the name as it appears in an object's `kind` field.
            pub const fn name(self) -> &'static str {
                match self { $(Kind::$kind => stringify!($kind),)* }
            }

            /// Returns the lower-case plural, used in store keys and CRD names.
            pub const fn plural(self) -> &'static str {
                match self { $(Kind::$kind => $plural,)* }
            }

            pub const fn scope(self) -> Scope {
                match self { $(Kind::$kind => Scope::$scope,)* }
            }

            /// Returns the names that the command line accepts besides the singular and the plural.
            pub const fn aliases(self) -> &'static [&'static str] {
                match self { $(Kind::$kind => &[$($alias),*],)* }
            }

            /// Returns the short names in the kind's CRD.
            pub const fn short_names(self) -> &'static [&'static str] {
                match self { $(Kind::$kind => &[$($short),*],)* }
            }
        }
    };
}

kinds! {
    IPPool "ippools" Cluster ["ipp" "ipps" "pool" "pools"] [];
    IPReservation "ipreservations" Cluster ["reservation" "reservations"] [];
    BGPConfiguration "bgpconfigurations" Cluster ["bgpconfig" "bgpconfigs"] ["bgpconfig" "bgpconfigs"];
    BGPPeer "bgppeers" Cluster ["bgpp" "bgpps" "bp" "bps"] [];
    BGPFilter "bgpfilters" Cluster ["bgpf" "bgpfs" "bf" "bfs"] [];
    FelixConfiguration "felixconfigurations" Cluster ["felixconfig" "felixconfigs"] [];
    GlobalNetworkPolicy "globalnetworkpolicies" Cluster ["gnp" "gnps"] ["gnp" "cgnp"];
    NetworkPolicy "networkpolicies" Namespaced ["policy" "np" "policies" "pol" "pols"] ["cnp" "caliconetworkpolicy"];
    StagedGlobalNetworkPolicy "stagedglobalnetworkpolicies" Cluster ["sgnp" "sgnps"] ["sgnp"];
    StagedNetworkPolicy "stagednetworkpolicies" Namespaced
        ["stagedpolicy" "snp" "stagedpolicies" "spol" "spols"] ["scnp" "snp"];
    StagedKubernetesNetworkPolicy "stagedkubernetesnetworkpolicies" Namespaced
        ["stagedkubernetespolicy" "sknp" "stagedkubernetespolicies" "skpol" "skpols"] ["sknp"];
    GlobalNetworkSet "globalnetworksets" Cluster ["gnetsets"] ["gns"];
    NetworkSet "networksets" Namespaced ["netsets"] [];
    HostEndpoint "hostendpoints" Cluster ["hep" "heps"] ["hep" "heps"];
    WorkloadEndpoint "workloadendpoints" Namespaced ["wep" "weps"] [];
    Profile "profiles" Cluster ["pro" "pros"] [];
    Node "nodes" Cluster ["no" "nos"] [];
    Tier "tiers" Cluster [] [];
    ClusterInformation "clusterinformations" Cluster ["clusterinfo" "clusterinfos"] ["clusterinfo" "clusterinfos"];
    KubeControllersConfiguration "kubecontrollersconfigurations" Cluster
        ["kubecontrollersconfig" "kubecontrollersconfigs"] ["kcc" "kccs"];
    CalicoNodeStatus "caliconodestatuses" Cluster ["nodestatus" "nodestatuses"] [];
    IPAMConfiguration "ipamconfigurations" Cluster ["ipamconfig" "ipamconfigs"] ["ipamconfig" "ipamconfigs"];
    BlockAffinity "blockaffinities" Cluster [] ["affinity" "affinities"];
    IPAMBlock "ipamblocks" Cluster [] [];
    IPAMHandle "ipamhandles" Cluster [] [];
    LiveMigration "livemigrations" Namespaced [] [];
}

impl Kind {
    /// Returns the kind whose `kind` field is exactly `name`.
    pub fn from_name(name: &str) -> Option<Kind> {
        Kind::ALL.iter().copied().find(|k| k.name() == name)
    }

    /// Returns the kind whose store and CRD plural is exactly `plural`.
    pub fn from_plural(plural: &str) -> Option<Kind> {
        Kind::ALL.iter().copied().find(|k| k.plural() == plural)
    }

    /// Returns the kind for a word on the command line: singular, plural or alias, case-insensitive.
    pub fn from_word(word: &str) -> Option<Kind> {
        let word = word.to_lowercase();
        Kind::ALL.iter().copied().find(|k| {
            k.name().to_lowercase() == word || k.plural() == word || k.aliases().contains(&word.as_str())
        })
    }

    pub fn is_namespaced(self) -> bool {
        self.scope() == Scope::Namespaced
    }

    /// Returns the name of the list kind: `IPPoolList` for `IPPool`.
    pub fn list_name(self) -> String {
        format!("{}List", self.name())
    }

    /// Formats an object for error messages: `Kind(name)` or `Kind(namespace/name)`.
    pub fn identify(self, namespace: &str, name: &str) -> String {
        if namespace.is_empty() { format!("{self}({name})") } else { format!("{self}({namespace}/{name})") }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_names_one_kind() {
        for kind in Kind::ALL.iter().copied() {
            for word in
                [&kind.name().to_uppercase(), kind.plural()].into_iter().chain(kind.aliases().iter().copied())
            {
                assert_eq!(Kind::from_word(word), Some(kind), "{word}");
            }
        }
        assert_eq!(Kind::from_word("nosuch"), None);
    }
}
