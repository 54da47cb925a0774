//! Converts Kubernetes label selectors to Calico selectors.

use crate::kinds::{LabelOperator, LabelSelector};
use crate::selector::{KIND_LABEL, NODE_KIND};

const PODS_ONLY: &str = "projectcalico.org/orchestrator == 'k8s'";

/// Returns a selector that matches pods only, not other endpoints with the same labels.
pub fn of_pods(selector: &LabelSelector) -> String {
    let mut all = vec![PODS_ONLY.to_owned()];
    all.extend(clauses(selector));
    all.join(" && ")
}

/// Returns a selector that matches nodes, and nothing else.
pub fn of_nodes(selector: &LabelSelector) -> String {
    let mut all = vec![format!("{KIND_LABEL} == '{NODE_KIND}'")];
    all.extend(clauses(selector));
    all.join(" && ")
}

/// Returns a selector of namespaces; an empty label selector matches all of them.
pub fn of_namespaces(selector: &LabelSelector) -> String {
    match clauses(selector) {
        clauses if clauses.is_empty() => "all()".to_owned(),
        clauses => clauses.join(" && "),
    }
}

fn clauses(selector: &LabelSelector) -> Vec<String> {
    let labels = selector.match_labels.iter().map(|(key, value)| format!("{key} == '{value}'"));
    let expressions = selector.match_expressions.iter().map(|requirement| {
        let key = &requirement.key;
        let values: Vec<String> = requirement.values.iter().map(|value| format!("'{value}'")).collect();
        let values = values.join(", ");
        match requirement.operator {
            LabelOperator::In => format!("{key} in {{ {values} }}"),
            LabelOperator::NotIn => format!("{key} not in {{ {values} }}"),
            LabelOperator::Exists => format!("has({key})"),
            // Validation rejects any other operator.
            LabelOperator::DoesNotExist | LabelOperator::Unknown(_) => format!("! has({key})"),
        }
    });
    labels.chain(expressions).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selector::Selector;
    use serde_json::json;

    #[test]
    fn selectors_read_as_the_reference_writes_them() {
        for (given, pods, namespaces) in [
            (json!({}), "projectcalico.org/orchestrator == 'k8s'", "all()"),
            (
                json!({"matchLabels": {"b": "2", "a": "1"}}),
                "projectcalico.org/orchestrator == 'k8s' && a == '1' && b == '2'",
                "a == '1' && b == '2'",
            ),
            (
                json!({"matchLabels": {"a": ""}, "matchExpressions": [
                    {"key": "z", "operator": "In", "values": ["x", "y"]},
                    {"key": "y", "operator": "NotIn", "values": ["x"]},
                    {"key": "k8s.io/x", "operator": "Exists"},
                    {"key": "w", "operator": "DoesNotExist"},
                ]}),
                "projectcalico.org/orchestrator == 'k8s' && a == '' && z in { 'x', 'y' } && y not in { 'x' } && \
                 has(k8s.io/x) && ! has(w)",
                "a == '' && z in { 'x', 'y' } && y not in { 'x' } && has(k8s.io/x) && ! has(w)",
            ),
        ] {
            let selector: LabelSelector = serde_json::from_value(given).unwrap();
            assert_eq!(of_pods(&selector), pods);
            assert_eq!(of_namespaces(&selector), namespaces);
            assert!(!Selector::parse(&of_pods(&selector)).unwrap().selects_nodes());
            assert!(!Selector::parse(&of_namespaces(&selector)).unwrap().selects_nodes());
            assert!(Selector::parse(&of_nodes(&selector)).unwrap().selects_nodes());
            assert_eq!(
                of_nodes(&selector),
                of_pods(&selector).replace("orchestrator == 'k8s'", "kind == 'Node'")
            );
        }
    }
}
