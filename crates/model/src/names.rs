//! Validates names, labels and annotations, and composes and splits the names of workload endpoints.

use crate::Kind;
use std::collections::BTreeMap;

const MAX_NAME_BYTES: usize = 253;
const MAX_LABEL_BYTES: usize = 63;
const MAX_ANNOTATION_BYTES: usize = 262_144;

/// The name of singleton objects and of objects that hold cluster-wide settings.
pub const DEFAULT_OBJECT_NAME: &str = "default";

/// Reason why a name, a label or an annotation is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("must not be empty")]
    Empty,
    #[error("must be no more than {max} characters")]
    TooLong { max: usize },
    #[error("must consist of lower case letters, digits and '-', and begin and end with a letter or digit")]
    NotLabel,
    #[error("each part between dots {}", NameError::NotLabel)]
    NotDotted,
    #[error("must consist of letters, digits, '-', '_' and '.', and begin and end with a letter or digit")]
    NotLabelText,
    #[error("must have at most one dot")]
    SeveralDots,
    #[error("must be \"{DEFAULT_OBJECT_NAME}\": there is only one {0}")]
    NotDefault(Kind),
    #[error("prefix part {0}")]
    Prefix(#[source] Box<NameError>),
    #[error("name part {0}")]
    NamePart(#[source] Box<NameError>),
    #[error("must be no more than {MAX_ANNOTATION_BYTES} bytes together, but are {bytes}")]
    AnnotationBytes { bytes: usize },
}

/// Returns whether `text` consists of lower-case letters, digits and inner dashes.
pub fn is_label(text: &str) -> bool {
    is_label_part(text.as_bytes())
}

fn is_label_part(text: &[u8]) -> bool {
    is_enclosed(text, |c| c.is_ascii_lowercase() || c.is_ascii_digit(), |c| c == b'-')
}

/// Returns whether the text is non-empty and consists of `core` characters, with `inner` characters allowed
/// except at both ends.
fn is_enclosed(text: &[u8], core: impl Fn(u8) -> bool, inner: impl Fn(u8) -> bool) -> bool {
    match text {
        [] => false,
        [only] => core(*only),
        [first, middle @ .., last] => {
            core(*first) && core(*last) && middle.iter().all(|c| core(*c) || inner(*c))
        }
    }
}

/// Checks a name that consists of labels joined by dots (DNS subdomain, RFC 1123).
pub fn check_dotted(name: &str) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    check_length(name, MAX_NAME_BYTES)?;
    let fits = name.as_bytes().split(|byte| *byte == b'.').all(is_label_part);
    if fits { Ok(()) } else { Err(NameError::NotDotted) }
}

/// Checks a name without dots (DNS label, RFC 1123).
pub fn check_label_form(name: &str) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    check_length(name, MAX_LABEL_BYTES)?;
    if is_label(name) { Ok(()) } else { Err(NameError::NotLabel) }
}

fn check_length(text: &str, max: usize) -> Result<(), NameError> {
    if text.len() <= max { Ok(()) } else { Err(NameError::TooLong { max }) }
}

/// Checks whether an object of the kind may have this name.
pub fn check_name(kind: Kind, name: &str) -> Result<(), NameError> {
    match kind {
        Kind::Tier => check_label_form(name),
        Kind::GlobalNetworkPolicy | Kind::StagedGlobalNetworkPolicy => check_policy_name(name),
        Kind::NetworkPolicy | Kind::StagedNetworkPolicy => {
            let generated =
                ["knp.default.", "ossg.default."].iter().find_map(|prefix| name.strip_prefix(prefix));
            match generated {
                Some(rest) => check_length(name, MAX_NAME_BYTES).and_then(|()| check_dotted(rest)),
                None => check_policy_name(name),
            }
        }
        Kind::ClusterInformation | Kind::KubeControllersConfiguration | Kind::IPAMConfiguration
            if name != DEFAULT_OBJECT_NAME =>
        {
            Err(NameError::NotDefault(kind))
        }
        _ => check_dotted(name),
    }
}

fn check_policy_name(name: &str) -> Result<(), NameError> {
    check_dotted(name)?;
    if name.matches('.').count() > 1 { Err(NameError::SeveralDots) } else { Ok(()) }
}

/// Checks a Kubernetes qualified name: an optional DNS prefix and a slash, then up to 63 characters.
pub fn check_qualified(key: &str) -> Result<(), NameError> {
    let name = match key.split_once('/') {
        Some((prefix, name)) => {
            check_dotted(prefix).map_err(|reason| NameError::Prefix(Box::new(reason)))?;
            name
        }
        None => key,
    };
    let result = if name.is_empty() { Err(NameError::Empty) } else { check_label_value(name) };
    result.map_err(|reason| NameError::NamePart(Box::new(reason)))
}

/// Checks a Kubernetes label value: empty, or up to 63 characters.
pub fn check_label_value(value: &str) -> Result<(), NameError> {
    check_length(value, MAX_LABEL_BYTES)?;
    if value.is_empty() || is_label_text(value) { Ok(()) } else { Err(NameError::NotLabelText) }
}

fn is_label_text(text: &str) -> bool {
    is_enclosed(text.as_bytes(), |c| c.is_ascii_alphanumeric(), |c| matches!(c, b'-' | b'_' | b'.'))
}

/// Checks the key of an annotation: a qualified name that may also contain upper-case letters.
pub fn check_annotation_key(key: &str) -> Result<(), NameError> {
    check_qualified(&key.to_lowercase())
}

/// Checks the total size of all annotations.
pub fn check_annotations_size(annotations: &BTreeMap<String, String>) -> Result<(), NameError> {
    let bytes: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes <= MAX_ANNOTATION_BYTES { Ok(()) } else { Err(NameError::AnnotationBytes { bytes }) }
}

/// The parts of a workload endpoint's name. The orchestrator decides which of them are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkloadEndpointParts<'a> {
    pub node: &'a str,
    pub orchestrator: &'a str,
    pub pod: &'a str,
    pub container_id: &'a str,
    pub workload: &'a str,
    pub endpoint: &'a str,
}

/// A part that is missing or malformed, so that the workload endpoint cannot be named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidNamePart {
    /// The JSON key of the field in the spec.
    pub field: &'static str,
    pub value: String,
    pub reason: &'static str,
}

impl<'a> WorkloadEndpointParts<'a> {
    /// Returns the segments in the order of the name, each with the field it comes from.
    fn segments(&self) -> [(&'static str, &'a str); 4] {
        let workload = match self.orchestrator {
            "k8s" => ("pod", self.pod),
            "cni" => ("containerID", self.container_id),
            "libnetwork" => ("orchestrator", "libnetwork"),
            _ => ("workload", self.workload),
        };
        [("node", self.node), ("orchestrator", self.orchestrator), workload, ("endpoint", self.endpoint)]
    }

    /// Returns the only valid name of an endpoint with these parts, or every part that is missing or
    /// malformed.
    pub fn name(&self) -> Result<String, Vec<InvalidNamePart>> {
        let segments = self.segments();
        let bad: Vec<InvalidNamePart> = segments
            .iter()
            .filter_map(|(field, value)| {
                let reason = if value.is_empty() {
                    "field should be assigned"
                } else if value.starts_with('-') || value.ends_with('-') {
                    "field must not begin or end with a '-'"
                } else {
                    return None;
                };
                Some(InvalidNamePart { field, value: (*value).to_owned(), reason })
            })
            .collect();
        if bad.is_empty() { Ok(segments.map(|(_, value)| double(value)).join("-")) } else { Err(bad) }
    }

    /// Returns whether `name` is composed of these parts, without allocating the composed name.
    pub fn make(&self, name: &str) -> bool {
        let mut rest = name.bytes();
        for (nth, (_, value)) in self.segments().into_iter().enumerate() {
            let fits = !value.is_empty() && !value.starts_with('-') && !value.ends_with('-');
            if !fits || (nth > 0 && rest.next() != Some(b'-')) {
                return false;
            }
            for byte in value.bytes() {
                if rest.next() != Some(byte) || (byte == b'-' && rest.next() != Some(b'-')) {
                    return false;
                }
            }
        }
        rest.next().is_none()
    }

    /// Returns the common prefix of the names of all endpoints with the known leading parts. Names of other
    /// endpoints may begin with it too: the prefix of node `a` also matches names of node `a-b`.
    pub fn prefix(&self) -> String {
        let segments = self.segments();
        let known: Vec<String> =
            segments.iter().map_while(|(_, value)| (!value.is_empty()).then(|| double(value))).collect();
        match known.len() {
            0 => String::new(),
            len if len == segments.len() => known.join("-"),
            _ => known.join("-") + "-",
        }
    }
}

fn double(segment: &str) -> String {
    segment.replace('-', "--")
}

/// Splits the name of a workload endpoint into node, orchestrator, workload and endpoint.
pub fn split_workload_endpoint_name(name: &str) -> Option<[String; 4]> {
    let mut segments = vec![String::new()];
    let mut chars = name.chars().peekable();
    while let Some(c) = chars.next() {
        let segment = segments.last_mut()?;
        if c != '-' || segment.is_empty() {
            segment.push(c);
        } else if chars.next_if_eq(&'-').is_some() {
            segment.push('-');
        } else {
            segments.push(String::new());
        }
    }
    let segments: [String; 4] = segments.try_into().ok()?;
    segments.iter().all(|segment| !segment.is_empty()).then_some(segments)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_kind_has_its_rule_for_names() {
        let long = |n: usize| "a".repeat(n);
        let table: &[(Kind, &str, bool)] = &[
            (Kind::IPPool, "pool-1", true),
            (Kind::IPPool, "a.b-c.d0", true),
            (Kind::IPPool, "0", true),
            (Kind::IPPool, "", false),
            (Kind::IPPool, "Pool", false),
            (Kind::IPPool, "pool_1", false),
            (Kind::IPPool, "-a", false),
            (Kind::IPPool, "a-", false),
            (Kind::IPPool, "a..b", false),
            (Kind::IPPool, "a.-b", false),
            (Kind::IPPool, "a/b", false),
            (Kind::IPPool, "pöol", false),
            (Kind::IPPool, &long(253), true),
            (Kind::IPPool, &long(254), false),
            (Kind::Tier, "platform", true),
            (Kind::Tier, "plat.form", false),
            (Kind::Tier, &long(63), true),
            (Kind::Tier, &long(64), false),
            (Kind::GlobalNetworkPolicy, "web", true),
            (Kind::GlobalNetworkPolicy, "tier.web", true),
            (Kind::GlobalNetworkPolicy, "a.b.c", false),
            (Kind::GlobalNetworkPolicy, "knp.default.web", false),
            (Kind::StagedGlobalNetworkPolicy, "a.b.c", false),
            (Kind::NetworkPolicy, "tier.web", true),
            (Kind::NetworkPolicy, "a.b.c", false),
            (Kind::NetworkPolicy, "knp.default.web", true),
            (Kind::NetworkPolicy, "knp.default.a.b.c", true),
            (Kind::NetworkPolicy, "ossg.default.4b0c6f3e", true),
            (Kind::NetworkPolicy, "knp.default.", false),
            (Kind::NetworkPolicy, "knp.default.Web", false),
            (Kind::StagedNetworkPolicy, "knp.default.a.b", true),
            (Kind::StagedKubernetesNetworkPolicy, "a.b.c", true),
            (Kind::ClusterInformation, "default", true),
            (Kind::ClusterInformation, "other", false),
            (Kind::KubeControllersConfiguration, "other", false),
            (Kind::IPAMConfiguration, "other", false),
            (Kind::FelixConfiguration, "node.rack1-n7", true),
            (Kind::FelixConfiguration, "gpu-nodes", true),
        ];
        for (kind, name, accepted) in table {
            assert_eq!(check_name(*kind, name).is_ok(), *accepted, "{kind} {name:?}");
        }
    }

    #[test]
    fn labels_and_annotations_follow_kubernetes() {
        for (key, accepted) in [
            ("role", true),
            ("Role_1.x", true),
            ("projectcalico.org/tier", true),
            ("", false),
            ("/x", false),
            ("a/", false),
            ("a/b/c", false),
            ("-x", false),
            ("Example.com/x", false),
            ("a b", false),
        ] {
            assert_eq!(check_qualified(key).is_ok(), accepted, "{key:?}");
        }
        assert!(check_qualified(&format!("a.b/{}", "x".repeat(63))).is_ok());
        assert!(check_qualified(&format!("a.b/{}", "x".repeat(64))).is_err());
        assert!(check_annotation_key("Example.com/X").is_ok());
        for (value, accepted) in [("", true), ("Web_1.0", true), ("a b", false), ("x-", false)] {
            assert_eq!(check_label_value(value).is_ok(), accepted, "{value:?}");
        }
        assert!(check_label_value(&"x".repeat(63)).is_ok());
        assert!(check_label_value(&"x".repeat(64)).is_err());

        let annotations = |size| BTreeMap::from([("k".to_owned(), "v".repeat(size))]);
        assert!(check_annotations_size(&annotations(MAX_ANNOTATION_BYTES - 1)).is_ok());
        assert!(check_annotations_size(&annotations(MAX_ANNOTATION_BYTES)).is_err());
    }

    fn pod() -> WorkloadEndpointParts<'static> {
        WorkloadEndpointParts {
            node: "rack1-n7",
            orchestrator: "k8s",
            pod: "web-0",
            container_id: "6f1d0a",
            workload: "w1",
            endpoint: "eth0",
        }
    }

    #[test]
    fn endpoint_names_are_composed_by_orchestrator() {
        for (orchestrator, name) in [
            ("k8s", "rack1--n7-k8s-web--0-eth0"),
            ("cni", "rack1--n7-cni-6f1d0a-eth0"),
            ("libnetwork", "rack1--n7-libnetwork-libnetwork-eth0"),
            ("openstack", "rack1--n7-openstack-w1-eth0"),
        ] {
            assert_eq!(WorkloadEndpointParts { orchestrator, ..pod() }.name().as_deref(), Ok(name));
        }
    }

    #[test]
    fn all_missing_parts_are_named() {
        let parts = WorkloadEndpointParts { node: "", pod: "web-", endpoint: "", ..pod() };
        let fields: Vec<_> =
            parts.name().unwrap_err().into_iter().map(|bad| (bad.field, bad.reason)).collect();
        assert_eq!(
            fields,
            [
                ("node", "field should be assigned"),
                ("pod", "field must not begin or end with a '-'"),
                ("endpoint", "field should be assigned")
            ]
        );
    }

    #[test]
    fn prefixes_hold_the_known_leading_parts() {
        assert_eq!(WorkloadEndpointParts::default().prefix(), "");
        assert_eq!(WorkloadEndpointParts { orchestrator: "", ..pod() }.prefix(), "rack1--n7-");
        assert_eq!(WorkloadEndpointParts { pod: "", ..pod() }.prefix(), "rack1--n7-k8s-");
        assert_eq!(WorkloadEndpointParts { endpoint: "", ..pod() }.prefix(), "rack1--n7-k8s-web--0-");
        assert_eq!(pod().prefix(), "rack1--n7-k8s-web--0-eth0");
    }

    #[test]
    fn endpoint_names_split_into_their_parts() {
        assert_eq!(
            split_workload_endpoint_name("rack1--n7-k8s-web--0-eth0"),
            Some(["rack1-n7", "k8s", "web-0", "eth0"].map(str::to_owned))
        );
        for name in ["", "a", "a-b-c", "a-b-c-", "a-b-c-d-e", "-a"] {
            assert_eq!(split_workload_endpoint_name(name), None, "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn endpoint_names_read_back(segments in proptest::array::uniform4("[a-z0-9]([a-z0-9-]{0,6}[a-z0-9])?")) {
            let [node, orchestrator, workload, endpoint] = &segments;
            prop_assume!(!["k8s", "cni", "libnetwork"].contains(&orchestrator.as_str()));
            let parts = WorkloadEndpointParts { node, orchestrator, workload, endpoint, ..Default::default() };
            let name = parts.name().unwrap();
            prop_assert_eq!(split_workload_endpoint_name(&name), Some(segments.clone()));
            prop_assert!(parts.make(&name));
            let others = [format!("{name}0"), format!("0{name}"), name.replacen('-', "--", 1), name[1..].to_owned()];
            prop_assert!(others.iter().all(|other| !parts.make(other)));
        }

        #[test]
        fn any_text_splits_or_not(text in ".{0,40}", dashes in "[a-]{0,20}") {
            split_workload_endpoint_name(&text);
            split_workload_endpoint_name(&dashes);
        }
    }
}
