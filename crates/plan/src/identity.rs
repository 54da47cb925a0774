//! The object that an address belongs to, for flow records.

/// The kind of object that has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IdentityKind {
    Workload,
    HostEndpoint,
    NetworkSet,
}

/// The object that an address belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AddressIdentity {
    pub kind: IdentityKind,
    /// Empty for objects without a namespace.
    pub namespace: String,
    /// For a pod with a generated name the prefix of the name and `*`.
    pub name: String,
    /// `KEY=VALUE`, sorted by key, with those that the object inherits.
    pub labels: Vec<String>,
}

/// The service that an address belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServiceIdentity {
    pub namespace: String,
    pub name: String,
}
