//! What an API server does to objects before it stores them, where they are custom resources of projectcalico.org/v3: admission
//! policies that fill in what a schema cannot, and that keep the built-in tiers.

use super::{GROUP, VERSION};
use crate::Kind;
use crate::kinds::BUILT_IN_TIERS;
use serde_json::{Value, json};

const ADMISSION: &str = "admissionregistration.k8s.io";
const TIERED: [Kind; 4] = [
    Kind::NetworkPolicy,
    Kind::GlobalNetworkPolicy,
    Kind::StagedNetworkPolicy,
    Kind::StagedGlobalNetworkPolicy,
];
const TIER_LABEL: &str = "projectcalico.org/tier";

/// The policies and their bindings. `version` is that in which the API server has policies that change objects: `v1beta1` in
/// Kubernetes 1.34 and 1.35, `v1` from 1.36 on.
pub fn admission_policies(version: &str) -> Vec<Value> {
    let mut objects = Vec::new();
    for (name, kinds, conditions, variables, patches) in [tier_label(), types()] {
        let spec = json!({
            "failurePolicy": "Fail",
            "reinvocationPolicy": "IfNeeded",
            "matchConstraints": constraints(&kinds, &["CREATE", "UPDATE"]),
            "matchConditions": named(&conditions),
            "variables": named(&variables),
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patches}}],
        });
        objects.push(object("MutatingAdmissionPolicy", version, name, spec));
        let binding = json!({ "policyName": name });
        objects.push(object("MutatingAdmissionPolicyBinding", version, name, binding));
    }
    let names = BUILT_IN_TIERS.map(|tier| format!("'{}'", tier.name)).join(", ");
    let name = "protect-builtin-tiers.projectcalico.org";
    let spec = json!({
        "failurePolicy": "Fail",
        "matchConstraints": constraints(&[Kind::Tier], &["DELETE"]),
        "validations": [{
            "expression": format!("!(oldObject.metadata.name in [{names}])"),
            "messageExpression": "'tier ' + oldObject.metadata.name + ' is built in and cannot be deleted'",
        }],
    });
    objects.push(object("ValidatingAdmissionPolicy", "v1", name, spec));
    let binding = json!({"policyName": name, "validationActions": ["Deny"]});
    objects.push(object("ValidatingAdmissionPolicyBinding", "v1", name, binding));
    objects
}

/// Name, kinds, conditions, variables and the patches to make.
type Mutation = (&'static str, Vec<Kind>, Vec<(&'static str, String)>, Vec<(&'static str, String)>, String);

/// A policy says its tier, in its label too, by which it can be selected.
fn tier_label() -> Mutation {
    let tier =
        "has(object.spec) && has(object.spec.tier) && object.spec.tier != '' ? object.spec.tier : 'default'";
    let patches = format!(
        "(has(object.spec) ? [{}] : [{}]) + (has(object.metadata.labels) ? [{}] : [{}])",
        add("'/spec/tier'", "variables.tier"),
        add("'/spec'", "{'tier': variables.tier}"),
        add(&format!("'/metadata/labels/' + jsonpatch.escapeKey('{TIER_LABEL}')"), "variables.tier"),
        add("'/metadata/labels'", &format!("{{'{TIER_LABEL}': variables.tier}}")),
    );
    let variables = vec![("tier", tier.to_owned())];
    ("tierlabel.policy.projectcalico.org", TIERED.to_vec(), Vec::new(), variables, patches)
}

/// Which directions a policy is about follows from its rules, if it does not say so. One with the rules of Kubernetes' own policies is
/// always about what comes in, as those are.
fn types() -> Mutation {
    let kubernetes = Kind::StagedKubernetesNetworkPolicy;
    let is_kubernetes = format!("request.resource.resource == '{}'", kubernetes.plural());
    let conditions = vec![
        (
            "no-types",
            format!(
                "!has(object.spec) || ({is_kubernetes} ? !has(object.spec.policyTypes) : !has(object.spec.types))"
            ),
        ),
        (
            // It has nothing but its name.
            "not-a-deletion",
            "!has(object.spec) || !has(object.spec.stagedAction) || object.spec.stagedAction != 'Delete'"
                .to_owned(),
        ),
    ];
    let types = format!(
        "{egress} ? ({ingress} || {is_kubernetes} ? ['Ingress', 'Egress'] : ['Egress']) : ['Ingress']",
        egress = has_rules("egress"),
        ingress = has_rules("ingress")
    );
    let field = format!("{is_kubernetes} ? 'policyTypes' : 'types'");
    let patches = format!(
        "has(object.spec) ? [{}] : [{}]",
        add("'/spec/' + variables.field", "variables.types"),
        add("'/spec'", "{variables.field: variables.types}")
    );
    let variables = vec![("types", types), ("field", field)];
    let kinds = [TIERED.as_slice(), &[kubernetes]].concat();
    ("policytypes.policy.projectcalico.org", kinds, conditions, variables, patches)
}

fn has_rules(direction: &str) -> String {
    format!("(has(object.spec) && has(object.spec.{direction}) && size(object.spec.{direction}) > 0)")
}

fn add(path: &str, value: &str) -> String {
    format!("JSONPatch{{op: 'add', path: {path}, value: {value}}}")
}

fn named(expressions: &[(&str, String)]) -> Value {
    expressions.iter().map(|(name, expression)| json!({"name": name, "expression": expression})).collect()
}

fn constraints(kinds: &[Kind], operations: &[&str]) -> Value {
    let plurals: Vec<&str> = kinds.iter().map(|kind| kind.plural()).collect();
    json!({"resourceRules": [{"apiGroups": [GROUP], "apiVersions": [VERSION], "operations": operations, "resources": plurals}]})
}

fn object(kind: &str, version: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": format!("{ADMISSION}/{version}"), "kind": kind, "metadata": {"name": name}, "spec": spec})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_is_bound() {
        let objects = admission_policies("v1beta1");
        let names = |suffix: &str| -> Vec<&str> {
            let of_kind = objects.iter().filter(|object| object["kind"].as_str().unwrap().ends_with(suffix));
            of_kind.map(|object| object["metadata"]["name"].as_str().unwrap()).collect()
        };
        assert_eq!(names("AdmissionPolicy"), names("Binding"));
        assert_eq!(names("AdmissionPolicy").len(), 3);
        assert_eq!(objects[0]["apiVersion"], "admissionregistration.k8s.io/v1beta1");
        let protection = &objects[4]["spec"]["validations"][0]["expression"];
        assert_eq!(protection, "!(oldObject.metadata.name in ['kube-admin', 'default', 'kube-baseline'])");
    }
}
