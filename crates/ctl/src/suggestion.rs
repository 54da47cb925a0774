//! Suggests a similar name for an unknown kind or field.

use crate::field_names::schema_with_metadata;
use crate::kind_word;
use serde_json::Value;
use tortie_model::object::DecodeError;
use tortie_model::{API_VERSION, Kind};

const FIELD_SIMILARITY_THRESHOLD: f64 = 0.85;
/// Maximum number of fields of one document for which a suggestion is made.
const MAX_SUGGESTIONS: usize = 8;

/// Returns the text to append to an error: `; did you mean spec.cidr?`, or nothing. `document` is the object
/// that could not be decoded.
pub fn hint(document: &Value, error: &DecodeError) -> String {
    let kind = document["kind"].as_str().unwrap_or_default();
    let meant = match error {
        DecodeError::UnknownKind { .. } if kind.is_empty() => find_misspelt_type(document),
        DecodeError::UnknownKind { version, .. } if version == API_VERSION => {
            find_similar_kind(kind).map(str::to_owned)
        }
        DecodeError::UnknownKind { .. } if Kind::from_name(kind).is_some() => {
            Some(format!("apiVersion {API_VERSION}"))
        }
        DecodeError::UnknownField(fields) => {
            Kind::from_name(kind).and_then(|kind| find_similar_fields(kind, fields))
        }
        _ => None,
    };
    meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default()
}

/// Returns `kind` or `apiVersion` if the document has a similar field instead.
fn find_misspelt_type(document: &Value) -> Option<String> {
    let known = ["kind", "apiVersion"].into_iter().filter(|known| document.get(known).is_none());
    let given =
        document.as_object()?.keys().filter(|key| !["metadata", "spec", "status"].contains(&key.as_str()));
    let pairs = known.flat_map(|known| given.clone().map(move |given| (known, given)));
    let meant = pairs.filter(|(known, given)| {
        strsim::jaro_winkler(&known.to_lowercase(), &given.to_lowercase()) > FIELD_SIMILARITY_THRESHOLD
    });
    meant.map(|(known, given)| format!("{known} instead of {given}")).next()
}

/// Returns the suggestions for a list of unknown fields, as an error lists them.
pub fn find_similar_fields(kind: Kind, fields: &str) -> Option<String> {
    let meant: Vec<String> = fields
        .split(", ")
        .filter_map(|field| find_similar_field(kind, field))
        .take(MAX_SUGGESTIONS)
        .collect();
    (!meant.is_empty()).then(|| meant.join(", "))
}

/// Returns the most similar kind, as it is written in an object.
fn find_similar_kind(word: &str) -> Option<&'static str> {
    // Internal kinds exist but are not available on the command line; a similar name would not help.
    if Kind::from_name(word).is_some() {
        return None;
    }
    let known = kind_word::parse_kind_word(word)
        .or_else(|| kind_word::parse_kind_word(&kind_word::similar_kind(word)?));
    known.map(Kind::name)
}

/// Returns a field with a similar name in the same object, or a field with the same name elsewhere.
fn find_similar_field(kind: Kind, path: &str) -> Option<String> {
    let (parent, name) = path.rsplit_once('.').unwrap_or(("", path));
    let plain = without_indexes(parent);
    let mut paths = Vec::new();
    collect_paths(&schema_with_metadata(kind), "", &mut paths);
    let beside = paths.iter().filter_map(|path| {
        let (above, known) = path.rsplit_once('.').unwrap_or(("", path));
        (above == plain).then_some(known)
    });
    let rated =
        beside.map(|known| (strsim::jaro_winkler(&known.to_lowercase(), &name.to_lowercase()), known));
    let best = rated.max_by(|(one, _), (other, _)| one.total_cmp(other));
    if let Some((_, known)) = best.filter(|(likeness, _)| *likeness > FIELD_SIMILARITY_THRESHOLD) {
        return Some(if parent.is_empty() { known.to_owned() } else { format!("{parent}.{known}") });
    }
    let elsewhere = paths.iter().filter(|path| path.rsplit('.').next() == Some(name));
    elsewhere.min_by_key(|path| path.len()).cloned()
}

/// Removes list indexes from a path: `spec.ingress[0].sauce` -> `spec.ingress.sauce`.
pub fn without_indexes(path: &str) -> String {
    path.split('[').map(|part| part.split_once(']').map_or(part, |(_, rest)| rest)).collect()
}

/// Collects the paths of all fields of a schema, without list indexes.
fn collect_paths(schema: &Value, above: &str, paths: &mut Vec<String>) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = if above.is_empty() { name.clone() } else { format!("{above}.{name}") };
        collect_paths(field, &path, paths);
        collect_paths(&field["items"], &path, paths);
        paths.push(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tortie_model::Resource;

    fn hint_for(document: Value) -> String {
        let error = Resource::from_user(document.clone()).unwrap_err();
        hint(&document, &error)
    }

    fn policy(spec: Value) -> Value {
        json!({"apiVersion": API_VERSION, "kind": "NetworkPolicy", "metadata": {"name": "a"}, "spec": spec})
    }

    #[test]
    fn paths_without_indexes() {
        for (path, expected) in [("spec.a[12].b", "spec.a.b"), ("x", "x"), ("a[0][1]", "a"), ("a[0", "a0")] {
            assert_eq!(without_indexes(path), expected);
        }
    }

    #[test]
    fn slips_in_kinds_and_fields_are_recognised() {
        let kind = |kind: &str| hint_for(json!({"apiVersion": API_VERSION, "kind": kind}));
        assert_eq!(kind("IPPol"), "; did you mean IPPool?");
        assert_eq!(kind("GlobalNetworkpolicy"), "; did you mean GlobalNetworkPolicy?");
        assert_eq!(kind("Deployment"), "");
        let version = json!({"apiVersion": "projectcalico.org/v1", "kind": "IPPool"});
        assert_eq!(hint_for(version), "; did you mean apiVersion projectcalico.org/v3?");
        assert_eq!(hint_for(policy(json!({"selectr": "all()"}))), "; did you mean spec.selector?");
        let rule = json!({"ingress": [{"action": "Allow", "destination": {"port": [80]}}]});
        assert_eq!(hint_for(policy(rule)), "; did you mean spec.ingress[0].destination.ports?");
        let misplaced = json!({"apiVersion": API_VERSION, "kind": "IPPool", "metadata": {"name": "a", "cidr": "10.0.0.0/8"}});
        assert_eq!(hint_for(misplaced), "; did you mean spec.cidr?");
        assert_eq!(hint_for(policy(json!({"colour": "red"}))), "");
        let several = policy(json!({"selectr": "all()", "oder": 5, "colour": "red"}));
        assert_eq!(hint_for(several), "; did you mean spec.selector, spec.order?");
        let misspelt = json!({"apiVersion": API_VERSION, "knd": "IPPool", "metadata": {"name": "a"}});
        assert_eq!(hint_for(misspelt), "; did you mean kind instead of knd?");
        let misspelt = json!({"apiversion": API_VERSION, "kid": "IPPool"});
        assert_eq!(hint_for(misspelt), "; did you mean kind instead of kid?");
        let label =
            json!({"apiVersion": API_VERSION, "kind": "Tier", "metadata": {"name": "a", "lables": {}}});
        assert_eq!(hint_for(label), "; did you mean metadata.labels?");
        let part = json!({"apiVersion": API_VERSION, "kind": "Tier", "metdata": {"name": "a"}});
        assert_eq!(hint_for(part), "; did you mean metadata?");
    }
}
