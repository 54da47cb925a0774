//! Generates the admission policies for projectcalico.org/v3 custom resources: they set defaults and check
//! rules that a CRD schema cannot express, and prevent the deletion of the built-in tiers.

use super::patterns::{self, QUALIFIED_LENGTHS, whole};
use super::{API_GROUP, API_GROUP_VERSION};
use crate::Kind;
use crate::kinds::{BUILT_IN_TIERS, NAMESPACE_LABEL};
use serde_json::{Value, json};

const ADMISSION_API_GROUP: &str = "admissionregistration.k8s.io";
const TIERED_KINDS: [Kind; 4] = [
    Kind::NetworkPolicy,
    Kind::GlobalNetworkPolicy,
    Kind::StagedNetworkPolicy,
    Kind::StagedGlobalNetworkPolicy,
];
const TIER_LABEL: &str = "projectcalico.org/tier";

/// Returns the policies and their bindings. `version` is the API version of MutatingAdmissionPolicy:
/// `v1beta1` in Kubernetes 1.34 and 1.35, `v1` since 1.36.
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
    for (name, kinds, condition, rules) in
        [rules_of_policies(), kubernetes_policies(), network_sets(), communities(), templates()]
    {
        let validations: Vec<Value> = rules
            .iter()
            .map(|(expression, message)| json!({"expression": expression, "message": message}))
            .collect();
        let spec = json!({
            "failurePolicy": "Fail",
            "matchConstraints": constraints(&kinds, &["CREATE", "UPDATE"]),
            "matchConditions": named(&[("changed", condition)]),
            "validations": validations,
        });
        objects.push(object("ValidatingAdmissionPolicy", "v1", name, spec));
        objects.push(object("ValidatingAdmissionPolicyBinding", "v1", name, denial(name)));
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
    objects.push(object("ValidatingAdmissionPolicyBinding", "v1", name, denial(name)));
    objects
}

fn denial(policy: &str) -> Value {
    json!({"policyName": policy, "validationActions": ["Deny"]})
}

/// Name, kinds, condition, and expressions with their messages. These are the rules that a schema cannot
/// express: rules about keys of maps and about labels of the object, and rules whose estimated CEL cost
/// exceeds the limit of Kubernetes for the longest lists.
type ValidatingRule = (&'static str, Vec<Kind>, String, Vec<(String, &'static str)>);

/// Returns an expression that is true if one of these fields of the spec was added, changed or removed. As
/// with CEL ratcheting in schemas, other fields can be updated while these keep invalid stored values.
fn changed(fields: &[&str]) -> String {
    let mut expression = "oldObject == null || !has(oldObject.spec) || !has(object.spec)".to_owned();
    for field in fields {
        let new = format!("object.spec.{field}");
        let old = format!("oldObject.spec.{field}");
        expression += &format!(" || has({new}) != has({old}) || (has({new}) && {new} != {old})");
    }
    expression
}

/// Returns an expression for a list of the object that is empty if the list is absent.
fn listed(parents: &[&str], list: &str) -> String {
    let path = parents.join(".");
    let has: Vec<String> =
        (2..=parents.len()).map(|len| format!("has({})", parents[..len].join("."))).collect();
    format!("({} ? {path}.{list} : [])", [has, vec![format!("has({path}.{list})")]].concat().join(" && "))
}

fn in_quotes(pattern: &str) -> String {
    format!("'{}'", pattern.replace('\\', "\\\\").replace('\'', "\\'"))
}

/// Returns an expression that is true if the keys of a map are valid Kubernetes qualified names.
fn keys_fit(map: &str, pattern: &str) -> String {
    format!(
        "{map}.all(k, k.matches({}) && k.matches({}))",
        in_quotes(&whole(pattern)),
        in_quotes(QUALIFIED_LENGTHS)
    )
}

const MASKED_NETWORK_EXPRESSION: &str = "[cidr(n)].all(c, c == c.masked())";

fn rules_of_policies() -> ValidatingRule {
    let in_order = "type(p) == int || !p.contains(':') || int(p.split(':')[0]) <= int(p.split(':')[1])";
    let ends =
        [("source", "ports"), ("source", "notPorts"), ("destination", "ports"), ("destination", "notPorts")]
            .map(|(end, list)| format!("{}.all(p, {in_order})", listed(&["r", end], list)))
            .join(" && ");
    let keys = keys_fit("r.metadata.annotations", &patterns::annotation_key());
    let annotations = format!("!has(r.metadata) || !has(r.metadata.annotations) || {keys}");
    let checks = vec![
        (all_rules(&ends), "a range of ports must not end before it begins"),
        (all_rules(&annotations), "keys of a rule's annotations must be qualified names"),
    ];
    ("rules.policy.projectcalico.org", TIERED_KINDS.to_vec(), changed(&["ingress", "egress"]), checks)
}

/// Returns an expression that is true if it holds for every rule `r` of a policy.
fn all_rules(expression: &str) -> String {
    let lists = ["ingress", "egress"].map(|list| listed(&["object", "spec"], list));
    lists.map(|list| format!("{list}.all(r, {expression})")).join(" && ")
}

/// Returns an expression that is true if it holds for every peer `p` of a Kubernetes policy.
fn all_peers(expression: &str) -> String {
    let directions = [("ingress", "from"), ("egress", "to")].map(|(direction, list)| {
        let rules = listed(&["object", "spec"], direction);
        format!("{rules}.all(r, {}.all(p, {expression}))", listed(&["r"], list))
    });
    directions.join(" && ")
}

/// Returns an expression that is true if the labels of a Kubernetes selector have valid keys.
fn match_labels_fit(selector: &str) -> String {
    let map = format!("{selector}.matchLabels");
    format!("(!has({selector}) || !has({map}) || {})", keys_fit(&map, &patterns::qualified_name()))
}

fn kubernetes_policies() -> ValidatingRule {
    let labels =
        format!("{} && {}", match_labels_fit("p.podSelector"), match_labels_fit("p.namespaceSelector"));
    let pod_selector = format!("(!has(object.spec) || {})", match_labels_fit("object.spec.podSelector"));
    let block = format!(
        "!has(p.ipBlock) || ([p.ipBlock.cidr] + {}).all(n, {MASKED_NETWORK_EXPRESSION})",
        listed(&["p", "ipBlock"], "except")
    );
    let inside = format!(
        "{}.all(n, cidr(p.ipBlock.cidr).containsCIDR(n) && cidr(p.ipBlock.cidr).prefixLength() < cidr(n).prefixLength())",
        listed(&["p", "ipBlock"], "except")
    );
    let checks = vec![
        (format!("{pod_selector} && {}", all_peers(&labels)), "keys of matchLabels must be qualified names"),
        (all_peers(&block), "networks of an ipBlock must have no bits set behind their prefix"),
        (all_peers(&inside), "networks of except must lie inside the cidr of the ipBlock and be smaller"),
    ];
    let kinds = vec![Kind::StagedKubernetesNetworkPolicy];
    (
        "blocks.kubernetespolicy.projectcalico.org",
        kinds,
        changed(&["podSelector", "ingress", "egress"]),
        checks,
    )
}

fn has_namespace_label(object: &str) -> String {
    format!("has({object}.metadata.labels) && '{NAMESPACE_LABEL}' in {object}.metadata.labels")
}

fn network_sets() -> ValidatingRule {
    let condition = format!("oldObject == null || !({})", has_namespace_label("oldObject"));
    let rule = format!("!({})", has_namespace_label("object"));
    let checks = vec![(rule, "label projectcalico.org/namespace is not allowed")];
    ("labels.networkset.projectcalico.org", vec![Kind::NetworkSet, Kind::GlobalNetworkSet], condition, checks)
}

fn communities() -> ValidatingRule {
    let spec = ["object", "spec"];
    let rule = format!(
        "{}.all(a, {}.all(c, c.contains(':') || {}.exists(d, d.name == c)))",
        listed(&spec, "prefixAdvertisements"),
        listed(&["a"], "communities"),
        listed(&spec, "communities")
    );
    let message = "communities of prefixAdvertisements must be values or names that communities defines";
    (
        "communities.bgp.projectcalico.org",
        vec![Kind::BGPConfiguration],
        changed(&["communities", "prefixAdvertisements"]),
        vec![(rule, message)],
    )
}

fn templates() -> ValidatingRule {
    let templates = listed(&["object", "spec", "controllers", "node", "hostEndpoint"], "templates");
    let rule = format!(
        "{templates}.all(t, (!has(t.labels) || {}) && (!has(t.annotations) || {}))",
        keys_fit("t.labels", &patterns::qualified_name()),
        keys_fit("t.annotations", &patterns::annotation_key())
    );
    let checks = vec![(rule, "keys of labels and annotations of a template must be qualified names")];
    let kinds = vec![Kind::KubeControllersConfiguration];
    ("templates.hostendpoint.projectcalico.org", kinds, changed(&["controllers"]), checks)
}

/// Name, kinds, conditions, variables and the JSON patches to apply.
type MutatingRule =
    (&'static str, Vec<Kind>, Vec<(&'static str, String)>, Vec<(&'static str, String)>, String);

/// Sets the tier of a policy and the label by which policies of a tier can be selected.
fn tier_label() -> MutatingRule {
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
    ("tierlabel.policy.projectcalico.org", TIERED_KINDS.to_vec(), Vec::new(), variables, patches)
}

/// Derives the omitted policy types from the rules. As in Kubernetes, a staged Kubernetes policy always
/// applies to ingress.
fn types() -> MutatingRule {
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
            // A staged deletion consists of its name only.
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
    let kinds = [TIERED_KINDS.as_slice(), &[kubernetes]].concat();
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
    json!({"resourceRules": [{"apiGroups": [API_GROUP], "apiVersions": [API_GROUP_VERSION], "operations": operations, "resources": plurals}]})
}

fn object(kind: &str, version: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": format!("{ADMISSION_API_GROUP}/{version}"), "kind": kind, "metadata": {"name": name}, "spec": spec})
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
        assert_eq!(names("AdmissionPolicy").len(), 8);
        assert_eq!(objects[0]["apiVersion"], "admissionregistration.k8s.io/v1beta1");
        let protection = &objects[14]["spec"]["validations"][0]["expression"];
        assert_eq!(protection, "!(oldObject.metadata.name in ['kube-admin', 'default', 'kube-baseline'])");
    }
}
