//! Names of regions, endpoints, policies and labels, as Calico's driver composes them.

use crate::OpenStackError;
use tortie_model::names::{WorkloadEndpointParts, check_label_form};

/// Maximum length of a region's name, so that its namespace is still a DNS label.
pub(crate) const MAX_REGION_CHARS: usize = 46;
pub(crate) const MAX_LABEL_CHARS: usize = 63;
/// Maximum length of a security group's name within a label key, which also contains a prefix.
pub(crate) const MAX_GROUP_NAME_CHARS: usize = 27;
pub(crate) const ORCHESTRATOR: &str = "openstack";
const POLICY_NAME_PREFIX: &str = "ossg.default.";
const INTERFACE_PREFIX: &str = "tap";
/// Characters of a port's id in the name of its interface.
const INTERFACE_ID_CHARS: usize = 11;

/// An OpenStack region; its name is empty outside of multi-region deployments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenStackRegion {
    name: String,
}

impl OpenStackRegion {
    pub fn new(name: &str) -> Result<OpenStackRegion, OpenStackError> {
        if !name.is_empty() && (name.len() > MAX_REGION_CHARS || check_label_form(name).is_err()) {
            return Err(OpenStackError::Region(name.to_owned()));
        }
        Ok(OpenStackRegion { name: name.to_owned() })
    }

    /// Returns the configured name, which is empty without a region.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the namespace of the region's resources.
    pub fn namespace(&self) -> String {
        if self.name.is_empty() { ORCHESTRATOR.to_owned() } else { format!("openstack-region-{}", self.name) }
    }
}

/// Returns the name of a port's endpoint on a host; `None` if a part is missing or cannot be part of a name.
pub(crate) fn compose_endpoint_name(host: &str, device_id: &str, port_id: &str) -> Option<String> {
    let parts = WorkloadEndpointParts {
        node: host,
        orchestrator: ORCHESTRATOR,
        workload: device_id,
        endpoint: port_id,
        ..WorkloadEndpointParts::default()
    };
    parts.name().ok()
}

pub(crate) fn compose_policy_name(group_id: &str) -> String {
    format!("{POLICY_NAME_PREFIX}{group_id}")
}

/// Returns the name of the interface that Nova creates for a port.
pub(crate) fn compose_interface_name(port_id: &str) -> String {
    INTERFACE_PREFIX.chars().chain(port_id.chars().take(INTERFACE_ID_CHARS)).collect()
}

/// Returns the text in the form of a label value: cut to `max_chars`, other characters replaced by `_`, and without
/// non-alphanumeric characters at both ends.
pub fn sanitize_label(text: &str, max_chars: usize) -> String {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let replaced: String = text.chars().take(max_chars).map(|c| if is_inner(c) { c } else { '_' }).collect();
    replaced.trim_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_names_double_the_dashes() {
        assert_eq!(
            compose_endpoint_name("cmp-1", "d0-aa", "p1-bb").as_deref(),
            Some("cmp--1-openstack-d0--aa-p1--bb")
        );
        assert_eq!(compose_endpoint_name("", "d0", "p1"), None);
        assert_eq!(compose_interface_name("0123456789abcdef"), "tap0123456789a");
    }

    #[test]
    fn labels_are_sanitized() {
        for (text, max, label) in [
            ("web", 63, "web"),
            ("my web group", 63, "my_web_group"),
            ("-web.", 63, "web"),
            ("***", 63, ""),
            ("caf\u{e9}s", 63, "caf_s"),
            ("0123456789", 4, "0123"),
            ("012 456", 4, "012"),
        ] {
            assert_eq!(sanitize_label(text, max), label, "{text:?}");
        }
    }

    #[test]
    fn regions_are_short_labels() {
        assert_eq!(OpenStackRegion::new("").unwrap().namespace(), "openstack");
        assert_eq!(OpenStackRegion::new("east-1").unwrap().namespace(), "openstack-region-east-1");
        assert!(OpenStackRegion::new(&"x".repeat(MAX_REGION_CHARS)).is_ok());
        for name in ["East", "a.b", "-a", &"x".repeat(MAX_REGION_CHARS + 1)] {
            let error = OpenStackRegion::new(name).unwrap_err().to_string();
            assert!(error.contains("DNS label"), "{error}");
        }
    }
}
