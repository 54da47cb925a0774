//! Resolves the namespace of an object: its own, the one requested on the command line, or `default`.

use crate::cli::NamespaceArgs;
use tortie_model::Kind;

#[derive(Clone, Copy, Debug, Default)]
pub struct RequestedNamespace<'a> {
    pub namespace: Option<&'a str>,
    pub all: bool,
}

impl<'a> From<&'a NamespaceArgs> for RequestedNamespace<'a> {
    fn from(args: &'a NamespaceArgs) -> RequestedNamespace<'a> {
        RequestedNamespace { namespace: args.namespace.as_deref(), all: false }
    }
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NamespaceError {
    #[error("cannot use both --namespace and --all-namespaces flags at the same time")]
    Both,
    #[error("resource namespace does not match client namespace. {0} != {1}")]
    Mismatch(String, String),
    #[error(
        "namespace should not be specified for a non-namespaced resource. {0} is not a namespaced resource"
    )]
    NotForKind(Kind),
    #[error("{0} is not namespaced")]
    NotNamespaced(Kind),
}

/// Returns the namespace for an object of `kind` whose own metadata contain `own`. Empty for cluster-scoped
/// kinds, and for namespaced kinds with --all-namespaces.
pub fn resolve(kind: Kind, own: &str, requested: RequestedNamespace) -> Result<String, NamespaceError> {
    let given = requested.namespace.unwrap_or_default();
    if !kind.is_namespaced() {
        return if !own.is_empty() {
            Err(NamespaceError::NotNamespaced(kind))
        } else if !given.is_empty() || requested.all {
            Err(NamespaceError::NotForKind(kind))
        } else {
            Ok(String::new())
        };
    }
    match (requested.all, own, given) {
        (true, _, given) if !given.is_empty() => Err(NamespaceError::Both),
        (true, _, _) => Ok(String::new()),
        (false, "", "") => Ok("default".to_owned()),
        (false, "", given) => Ok(given.to_owned()),
        (false, own, given) if given.is_empty() || own == given => Ok(own.to_owned()),
        (false, own, given) => Err(NamespaceError::Mismatch(own.to_owned(), given.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules() {
        use Kind::{IPPool, NetworkPolicy};
        let cases: &[(Kind, &str, Option<&str>, bool, &str)] = &[
            (NetworkPolicy, "", None, false, "default"),
            (NetworkPolicy, "", Some("shop"), false, "shop"),
            (NetworkPolicy, "shop", None, false, "shop"),
            (NetworkPolicy, "shop", Some("shop"), false, "shop"),
            (NetworkPolicy, "", None, true, ""),
            (NetworkPolicy, "shop", None, true, ""),
            (
                NetworkPolicy,
                "a",
                Some("b"),
                false,
                "resource namespace does not match client namespace. a != b",
            ),
            (
                NetworkPolicy,
                "",
                Some("b"),
                true,
                "cannot use both --namespace and --all-namespaces flags at the same time",
            ),
            (IPPool, "", None, false, ""),
            (
                IPPool,
                "",
                Some("b"),
                false,
                "namespace should not be specified for a non-namespaced resource. IPPool is not a namespaced resource",
            ),
            (IPPool, "a", None, false, "IPPool is not namespaced"),
        ];
        for &(kind, own, namespace, all, expected) in cases {
            let got = resolve(kind, own, RequestedNamespace { namespace, all });
            assert_eq!(got.unwrap_or_else(|e| e.to_string()), expected, "{kind} {own} {namespace:?} {all}");
        }
    }
}
