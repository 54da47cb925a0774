//! Converts the selectors in a policy to selectors over the labels of endpoints and network sets.
//!
//! Namespaces and service accounts are labels of an endpoint: its own `projectcalico.org/namespace` and
//! `projectcalico.org/serviceaccount`, and `pcns.`/`pcsa.` labels inherited from its profiles. This module
//! combines the selectors of a policy into one over these labels. The result is text, because Calico rewrites
//! text and some of its replacements ignore syntax: `all()` is replaced even inside a string.
//!
//! As in the resources, an empty text means "no selector".

use super::{Selector, SelectorNode, SelectorParseError};

const NAMESPACE: &str = "projectcalico.org/namespace";
const SERVICE_ACCOUNT: &str = "projectcalico.org/serviceaccount";
const NAMESPACE_PREFIX: &str = "pcns.";
const SERVICE_ACCOUNT_PREFIX: &str = "pcsa.";
const ANY_NAMESPACE: &str = "has(projectcalico.org/namespace)";
const NO_NAMESPACE: &str = "!has(projectcalico.org/namespace)";
const ANY_SERVICE_ACCOUNT: &str = "has(projectcalico.org/serviceaccount)";

/// Reasons why a policy's selectors cannot be combined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RewriteError {
    #[error("invalid selector `{text}`: {error}")]
    Selector { text: String, error: SelectorParseError },
    #[error("the name `{0}` contains a quote")]
    Name(String),
}

/// The selectors of a rule's source or destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntitySelectors<'a> {
    pub selector: &'a str,
    pub not_selector: &'a str,
    pub namespace_selector: &'a str,
    pub service_account_names: &'a [String],
    pub service_account_selector: &'a str,
}

/// The IP sets that a rule's source or destination is matched against.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntityMatch {
    /// The address must be in this selector's set.
    pub selector: Option<Selector>,
    /// The address must not be in this selector's set; it need not belong to a known endpoint.
    pub not_selector: Option<Selector>,
}

/// Returns the selector of the endpoints that a NetworkPolicy in `namespace` applies to.
pub fn network_policy_selector(
    namespace: &str,
    selector: &str,
    service_account_selector: &str,
) -> Result<String, RewriteError> {
    let own = and(checked(selector)?, &in_namespace(namespace)?);
    Ok(and(&own, &prefixed(service_account_selector, SERVICE_ACCOUNT_PREFIX)?))
}

/// Returns the selector of the endpoints that a GlobalNetworkPolicy applies to.
pub fn global_network_policy_selector(
    selector: &str,
    namespace_selector: &str,
    service_account_selector: &str,
) -> Result<String, RewriteError> {
    let mut result = checked(selector)?.to_owned();
    if !namespace_selector.is_empty() {
        let namespaces = prefixed(namespace_selector, NAMESPACE_PREFIX)?;
        result = and(&result, &namespaces).replace("all()", ANY_NAMESPACE);
    }
    if !service_account_selector.is_empty() {
        let accounts = prefixed(service_account_selector, SERVICE_ACCOUNT_PREFIX)?;
        result = and(&result, &accounts).replace("all()", ANY_SERVICE_ACCOUNT);
    }
    Ok(result)
}

/// Returns the selector that an address must match, ignoring `notSelector`. `namespace` is that of the
/// policy, empty for GlobalNetworkPolicies and profiles.
pub fn entity_selector(entity: &EntitySelectors<'_>, namespace: &str) -> Result<String, RewriteError> {
    let namespaces = match (entity.namespace_selector, namespace) {
        ("", "") => String::new(),
        ("", namespace) => in_namespace(namespace)?,
        (selector, _) => prefixed(selector, NAMESPACE_PREFIX)?
            .replace("all()", ANY_NAMESPACE)
            .replace("global()", NO_NAMESPACE),
    };
    let accounts = and_grouped(
        &prefixed(entity.service_account_selector, SERVICE_ACCOUNT_PREFIX)?,
        &named_accounts(entity.service_account_names)?,
    );
    let own = and_grouped(&accounts, checked(entity.selector)?);
    // A rule without any selector matches addresses and ports only; the policy's namespace must not restrict
    // it.
    let selects =
        [own.as_str(), entity.not_selector, entity.namespace_selector].iter().any(|s| !s.is_empty());
    Ok(if selects { and_grouped(&namespaces, &own) } else { own })
}

/// Returns the IP sets that a rule's source or destination is matched against. Together with a positive
/// selector, `notSelector` removes members from its set; alone, it also holds for addresses that belong to no
/// endpoint.
pub fn entity_match(entity: &EntitySelectors<'_>, namespace: &str) -> Result<EntityMatch, RewriteError> {
    let positive = entity_selector(entity, namespace)?;
    let negative = checked(entity.not_selector)?;
    Ok(match (positive.as_str(), negative) {
        ("", "") => EntityMatch::default(),
        ("", negative) => EntityMatch { selector: None, not_selector: Some(parse(negative)?) },
        (positive, "") => EntityMatch { selector: Some(parse(positive)?), not_selector: None },
        (positive, negative) => {
            let merged = format!("({positive}) && (!({negative}))");
            EntityMatch { selector: Some(parse(&merged)?), not_selector: None }
        }
    })
}

fn parse(text: &str) -> Result<Selector, RewriteError> {
    Selector::parse(text).map_err(|error| RewriteError::Selector { text: text.to_owned(), error })
}

/// Checks that a text to be enclosed in parentheses is a selector by itself: `a == "b") || (all()` is not,
/// and would escape the policy's namespace.
fn checked(selector: &str) -> Result<&str, RewriteError> {
    parse(selector).map(|_| selector)
}

fn prefixed(selector: &str, prefix: &str) -> Result<String, RewriteError> {
    if selector.is_empty() {
        return Ok(String::new());
    }
    parse(selector).map(|parsed| parsed.prefixed(prefix).to_string())
}

fn in_namespace(namespace: &str) -> Result<String, RewriteError> {
    if namespace.contains('\'') {
        return Err(RewriteError::Name(namespace.to_owned()));
    }
    Ok(format!("{NAMESPACE} == '{namespace}'"))
}

fn named_accounts(names: &[String]) -> Result<String, RewriteError> {
    if names.is_empty() {
        return Ok(String::new());
    }
    if let Some(name) = names.iter().find(|name| name.contains(['"', '\''])) {
        return Err(RewriteError::Name(name.clone()));
    }
    let values = names.iter().map(|name| name.as_str().into()).collect();
    Ok(SelectorNode::member(SERVICE_ACCOUNT, false, values).to_string())
}

/// Returns `(a) && b`, or the operand that is not empty. `b` must be a single operand.
fn and(a: &str, b: &str) -> String {
    match (a, b) {
        (a, "") => a.to_owned(),
        ("", b) => b.to_owned(),
        (a, b) => format!("({a}) && {b}"),
    }
}

/// Returns `(a) && (b)`, or the operand that is not empty.
fn and_grouped(a: &str, b: &str) -> String {
    match (a, b) {
        (a, "") => a.to_owned(),
        ("", b) => b.to_owned(),
        (a, b) => format!("({a}) && ({b})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn global(selector: &str, namespaces: &str, accounts: &str) -> String {
        global_network_policy_selector(selector, namespaces, accounts).unwrap()
    }

    fn entity(namespace: &str, entity: EntitySelectors<'_>) -> String {
        entity_selector(&entity, namespace).unwrap()
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn network_policies_stay_in_their_namespace() {
        let rewrite = |selector, accounts| network_policy_selector("shop", selector, accounts).unwrap();
        assert_eq!(rewrite("", ""), "projectcalico.org/namespace == 'shop'");
        assert_eq!(rewrite("a=='b'", ""), "(a=='b') && projectcalico.org/namespace == 'shop'");
        assert_eq!(
            rewrite("a=='b'", "role in {'z','y'}"),
            "((a=='b') && projectcalico.org/namespace == 'shop') && pcsa.role in {\"y\", \"z\"}"
        );
        assert_eq!(
            rewrite("", "all()"),
            "(projectcalico.org/namespace == 'shop') && all()",
            "not replaced here"
        );
    }

    #[test]
    fn global_policies_gain_namespaces_and_service_accounts() {
        assert_eq!(global("", "", ""), "");
        assert_eq!(global("a=='b'", "", ""), "a=='b'");
        assert_eq!(global("", "x == 'y'", ""), "pcns.x == \"y\"");
        assert_eq!(
            global("has(a)", "x == 'y' || has(z)", ""),
            "(has(a)) && (pcns.x == \"y\" || has(pcns.z))"
        );
        assert_eq!(global("has(a)", "", "has(b)"), "(has(a)) && has(pcsa.b)");
        assert_eq!(global("has(a)", "has(b)", "has(c)"), "((has(a)) && has(pcns.b)) && has(pcsa.c)");
    }

    #[test]
    fn all_means_any_namespace_even_inside_strings() {
        assert_eq!(global("all()", "", ""), "all()");
        assert_eq!(global("", "all()", ""), "has(projectcalico.org/namespace)");
        assert_eq!(
            global("all() || a == 'all()'", "all()", "all()"),
            "((has(projectcalico.org/namespace) || a == 'has(projectcalico.org/namespace)') \
             && has(projectcalico.org/namespace)) && has(projectcalico.org/serviceaccount)"
        );
        assert_eq!(
            global("all()", "", "all()"),
            "(has(projectcalico.org/serviceaccount)) && has(projectcalico.org/serviceaccount)"
        );
        assert_eq!(global("all( )", "has(x)", ""), "(all( )) && has(pcns.x)", "only the canonical spelling");
    }

    #[test]
    fn rules_without_selectors_match_any_namespace() {
        assert_eq!(entity("shop", EntitySelectors::default()), "");
        assert_eq!(entity("", EntitySelectors::default()), "");
    }

    #[test]
    fn rules_of_a_namespace_select_there() {
        let ns = "projectcalico.org/namespace == 'shop'";
        let selected = EntitySelectors { selector: "has(a)", ..EntitySelectors::default() };
        assert_eq!(entity("shop", selected), format!("({ns}) && (has(a))"));
        assert_eq!(entity("", selected), "has(a)");
        assert_eq!(
            entity("shop", EntitySelectors { not_selector: "has(a)", ..EntitySelectors::default() }),
            ns
        );
        assert_eq!(entity("", EntitySelectors { not_selector: "has(a)", ..EntitySelectors::default() }), "");
    }

    #[test]
    fn rules_select_namespaces() {
        let select =
            |namespace_selector| EntitySelectors { namespace_selector, ..EntitySelectors::default() };
        assert_eq!(entity("shop", select("x == 'y'")), "pcns.x == \"y\"");
        assert_eq!(entity("shop", select("all()")), "has(projectcalico.org/namespace)");
        assert_eq!(entity("", select("global()")), "!has(projectcalico.org/namespace)");
        assert_eq!(
            entity("", EntitySelectors { selector: "all()", ..select("all()") }),
            "(has(projectcalico.org/namespace)) && (all())"
        );
    }

    #[test]
    fn rules_select_service_accounts() {
        let (two, one) = (names(&["b", "a", "b"]), names(&["x"]));
        let by_name = EntitySelectors { service_account_names: &two, ..EntitySelectors::default() };
        assert_eq!(entity("", by_name), "projectcalico.org/serviceaccount in {\"a\", \"b\"}");
        let both = EntitySelectors {
            service_account_names: &one,
            service_account_selector: "has(k)",
            ..EntitySelectors::default()
        };
        assert_eq!(entity("", both), "(has(pcsa.k)) && (projectcalico.org/serviceaccount in {\"x\"})");
        assert_eq!(
            entity("shop", EntitySelectors { selector: "has(a)", ..both }),
            "(projectcalico.org/namespace == 'shop') && \
             (((has(pcsa.k)) && (projectcalico.org/serviceaccount in {\"x\"})) && (has(a)))"
        );
    }

    #[test]
    fn not_selectors_combine_with_selectors_or_stay_alone() {
        let rule = EntitySelectors { not_selector: "has(x) || has(y)", ..EntitySelectors::default() };
        let alone = entity_match(&rule, "").unwrap();
        assert_eq!(alone.selector, None);
        assert_eq!(alone.not_selector.unwrap().to_string(), "(has(x) || has(y))");
        let merged = entity_match(&rule, "shop").unwrap();
        assert_eq!(merged.not_selector, None);
        assert_eq!(
            merged.selector.unwrap().to_string(),
            "(projectcalico.org/namespace == \"shop\" && !(has(x) || has(y)))"
        );
        assert_eq!(entity_match(&EntitySelectors::default(), "shop").unwrap(), EntityMatch::default());
        let positive =
            entity_match(&EntitySelectors { selector: "has(x)", ..EntitySelectors::default() }, "").unwrap();
        assert_eq!(
            (positive.selector.unwrap().to_string().as_str(), positive.not_selector),
            ("has(x)", None)
        );
    }

    #[test]
    fn nothing_escapes_its_parentheses() {
        let escape = "has(a)) || (has(b)";
        assert!(matches!(
            network_policy_selector("shop", escape, ""),
            Err(RewriteError::Selector { text, .. }) if text == escape
        ));
        assert!(global_network_policy_selector(escape, "has(x)", "").is_err());
        assert!(
            entity_match(&EntitySelectors { selector: escape, ..EntitySelectors::default() }, "shop")
                .is_err()
        );
        assert!(
            entity_match(&EntitySelectors { not_selector: escape, ..EntitySelectors::default() }, "shop")
                .is_err()
        );
        assert_eq!(
            network_policy_selector("x' || has(a) || b == '", "", ""),
            Err(RewriteError::Name("x' || has(a) || b == '".to_owned()))
        );
        let quoted = names(&["a\"b"]);
        let rule = EntitySelectors { service_account_names: &quoted, ..EntitySelectors::default() };
        assert_eq!(entity_selector(&rule, ""), Err(RewriteError::Name("a\"b".to_owned())));
    }
}
