//! Parses the annotations of a pod and of its namespace that concern its network.

use super::config::NetworkConfig;
use super::identity::CALICO_IPAM;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::IpAddr;
use tortie_cni::{CniError, code};
use tortie_compute::MAX_FLOATING_IPS;

const IPV4_POOLS_ANNOTATION: &str = "cni.projectcalico.org/ipv4pools";
const IPV6_POOLS_ANNOTATION: &str = "cni.projectcalico.org/ipv6pools";
const IP_FAMILIES_ANNOTATION: &str = "cni.projectcalico.org/ipFamilies";
const IP_ADDRS_ANNOTATION: &str = "cni.projectcalico.org/ipAddrs";
const IP_ADDRS_NO_IPAM_ANNOTATION: &str = "cni.projectcalico.org/ipAddrsNoIpam";
const FLOATING_IPS_ANNOTATION: &str = "cni.projectcalico.org/floatingIPs";
const HW_ADDR_ANNOTATION: &str = "cni.projectcalico.org/hwAddr";

/// The source of a pod's addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AddressSource {
    #[default]
    Any,
    /// These addresses, assigned by Calico IPAM.
    Exactly(Vec<IpAddr>),
    /// These addresses, without IPAM.
    Unmanaged(Vec<IpAddr>),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodNetworkAnnotations {
    pub addresses: AddressSource,
    pub v4_pools: Option<Vec<String>>,
    pub v6_pools: Option<Vec<String>>,
    /// The requested address families.
    pub families: Option<RequestedFamilies>,
    pub mac: Option<[u8; 6]>,
    /// Floating addresses that are translated to the pod's address.
    pub floating: Vec<IpAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestedFamilies {
    pub v4: bool,
    pub v6: bool,
}

type AnnotationMap = BTreeMap<String, String>;

impl PodNetworkAnnotations {
    /// Parses the annotations. Those of the pod take precedence over those of its namespace.
    pub fn read(
        pod: &AnnotationMap,
        namespace: &AnnotationMap,
        config: &NetworkConfig,
    ) -> Result<PodNetworkAnnotations, CniError> {
        let own_ipam = config.ipam.kind == CALICO_IPAM;
        let either = |name: &str| pod.get(name).or_else(|| namespace.get(name));
        let mut pod_annotations = PodNetworkAnnotations {
            addresses: read_addresses(pod, config)?,
            ..PodNetworkAnnotations::default()
        };
        if own_ipam {
            pod_annotations.v4_pools =
                either(IPV4_POOLS_ANNOTATION).map(|text| parse_list(text)).transpose()?;
            pod_annotations.v6_pools =
                either(IPV6_POOLS_ANNOTATION).map(|text| parse_list(text)).transpose()?;
            pod_annotations.families =
                either(IP_FAMILIES_ANNOTATION).map(|text| parse_families(text)).transpose()?;
        }
        if let Some(text) = pod.get(FLOATING_IPS_ANNOTATION).filter(|text| !text.is_empty()) {
            if !config.feature_control.floating_ips {
                return Err(refuse_annotation("requested feature is not enabled: floating_ips".to_owned()));
            }
            let listed = parse_list(text)?;
            if listed.len() > MAX_FLOATING_IPS {
                let count = listed.len();
                let message = format!(
                    "annotation {FLOATING_IPS_ANNOTATION}: {count} addresses, at most {MAX_FLOATING_IPS}"
                );
                return Err(refuse_annotation(message));
            }
            pod_annotations.floating =
                listed.iter().map(|text| parse_address(text)).collect::<Result<_, _>>()?;
        }
        pod_annotations.mac = pod.get(HW_ADDR_ANNOTATION).map(|text| parse_mac(text)).transpose()?;
        Ok(pod_annotations)
    }

    /// Sets the requested pools and families in the configuration.
    pub fn apply(&self, config: &mut NetworkConfig) {
        let ipam = &mut config.ipam;
        if let Some(pools) = &self.v4_pools {
            ipam.ipv4_pools = pools.clone();
        }
        if let Some(pools) = &self.v6_pools {
            ipam.ipv6_pools = pools.clone();
        }
        if let Some(families) = self.families {
            ipam.assign_ipv4 = Some(families.v4.to_string());
            ipam.assign_ipv6 = Some(families.v6.to_string());
        }
    }
}

fn read_addresses(pod: &AnnotationMap, config: &NetworkConfig) -> Result<AddressSource, CniError> {
    let with_ipam = pod.get(IP_ADDRS_ANNOTATION).map(|text| (IP_ADDRS_ANNOTATION, text));
    let without_ipam = pod.get(IP_ADDRS_NO_IPAM_ANNOTATION).map(|text| (IP_ADDRS_NO_IPAM_ANNOTATION, text));
    let (name, text) = match (with_ipam, without_ipam) {
        (None, None) => return Ok(AddressSource::Any),
        (Some(_), Some(_)) => {
            let message =
                "can't have both annotations: 'ipAddrs' and 'ipAddrsNoIpam' in use at the same time";
            return Err(refuse_annotation(message.to_owned()));
        }
        (Some(given), None) | (None, Some(given)) => given,
    };
    let short = name.rsplit('/').next().unwrap_or(name);
    if name == IP_ADDRS_NO_IPAM_ANNOTATION && !config.feature_control.ip_addrs_no_ipam {
        return Err(refuse_annotation("requested feature is not enabled: ip_addrs_no_ipam".to_owned()));
    }
    if config.ipam.kind != CALICO_IPAM {
        return Err(refuse_annotation(format!(
            "{short} is not compatible with configured IPAM: {}",
            config.ipam.kind
        )));
    }
    let texts = parse_list(text)?;
    if texts.is_empty() {
        return Err(refuse_annotation(format!("annotation {name:?} specified but empty")));
    }
    let addresses: Vec<IpAddr> = texts.iter().map(|text| parse_address(text)).collect::<Result<_, _>>()?;
    for (family, v4) in [("IPv4", true), ("IPv6", false)] {
        if addresses.iter().filter(|address| address.is_ipv4() == v4).count() > 1 {
            let message = format!("cannot have more than one {family} address for {name:?} annotation");
            return Err(refuse_annotation(message));
        }
    }
    Ok(match name {
        IP_ADDRS_ANNOTATION => AddressSource::Exactly(addresses),
        _ => AddressSource::Unmanaged(addresses),
    })
}

fn parse_address(text: &str) -> Result<IpAddr, CniError> {
    text.parse().map_err(|_| refuse_annotation(format!("invalid IP format: {text}")))
}

fn parse_families(text: &str) -> Result<RequestedFamilies, CniError> {
    #[derive(Deserialize, PartialEq)]
    enum AnnotatedFamily {
        IPv4,
        IPv6,
    }
    let listed: Vec<AnnotatedFamily> = serde_json::from_str(text)
        .map_err(|error| refuse_annotation(format!("error parsing ipFamilies: {error}")))?;
    Ok(RequestedFamilies {
        v4: listed.contains(&AnnotatedFamily::IPv4),
        v6: listed.contains(&AnnotatedFamily::IPv6),
    })
}

fn parse_list(text: &str) -> Result<Vec<String>, CniError> {
    serde_json::from_str(text)
        .map_err(|error| refuse_annotation(format!("failed to parse '{text}' as JSON: {error}")))
}

fn parse_mac(text: &str) -> Result<[u8; 6], CniError> {
    let bytes: Option<Vec<u8>> = text
        .split(':')
        .map(|part| (part.len() == 2).then(|| u8::from_str_radix(part, 16).ok()).flatten())
        .collect();
    bytes.and_then(|bytes| <[u8; 6]>::try_from(bytes).ok()).ok_or_else(|| {
        refuse_annotation(format!("annotation {HW_ADDR_ANNOTATION}: {text:?} is not a MAC address"))
    })
}

fn refuse_annotation(message: String) -> CniError {
    CniError::new(code::FAILED, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> NetworkConfig {
        NetworkConfig::parse(&format!(r#"{{"name":"n"{text}}}"#)).unwrap().0
    }

    fn ours() -> NetworkConfig {
        config(r#","ipam":{"type":"calico-ipam"}"#)
    }

    fn annotations(pairs: &[(&str, &str)]) -> AnnotationMap {
        let name = |name: &str| format!("cni.projectcalico.org/{name}");
        pairs.iter().map(|(key, value)| (name(key), (*value).to_owned())).collect()
    }

    fn read(pod: &[(&str, &str)], namespace: &[(&str, &str)]) -> Result<PodNetworkAnnotations, String> {
        let read = PodNetworkAnnotations::read(&annotations(pod), &annotations(namespace), &ours());
        read.map_err(|error| error.message)
    }

    #[test]
    fn a_pod_is_stronger_than_its_namespace() {
        let pod_annotations = read(
            &[("ipv4pools", r#"["mine"]"#), ("hwAddr", "1c:0c:0a:c0:ff:ee")],
            &[("ipv4pools", r#"["ours"]"#), ("ipv6pools", r#"["six"]"#), ("ipFamilies", r#"["IPv6"]"#)],
        )
        .unwrap();
        assert_eq!(pod_annotations.mac, Some([0x1c, 0x0c, 0x0a, 0xc0, 0xff, 0xee]));
        let mut config = ours();
        pod_annotations.apply(&mut config);
        assert_eq!(
            (config.ipam.ipv4_pools, config.ipam.ipv6_pools),
            (vec!["mine".into()], vec!["six".into()])
        );
        assert_eq!(config.ipam.assign_ipv4.as_deref(), Some("false"));
        assert_eq!(config.ipam.assign_ipv6.as_deref(), Some("true"));
        assert_eq!(read(&[], &[]).unwrap(), PodNetworkAnnotations::default());
    }

    #[test]
    fn addresses_are_one_of_each_family_at_most() {
        let pod_annotations = read(&[("ipAddrs", r#"["10.0.0.1","fd00::1"]"#)], &[]).unwrap();
        let both = ["10.0.0.1", "fd00::1"].map(|text| text.parse().unwrap()).to_vec();
        assert_eq!(pod_annotations.addresses, AddressSource::Exactly(both));
        let refused = |text: &str| read(&[("ipAddrs", text)], &[]).unwrap_err();
        assert_eq!(
            refused(r#"["10.0.0.1","10.0.0.2"]"#),
            r#"cannot have more than one IPv4 address for "cni.projectcalico.org/ipAddrs" annotation"#
        );
        assert_eq!(refused("[]"), r#"annotation "cni.projectcalico.org/ipAddrs" specified but empty"#);
        assert_eq!(refused(r#"["x"]"#), "invalid IP format: x");
        assert!(refused("10.0.0.1").starts_with("failed to parse '10.0.0.1' as JSON: "));
    }

    #[test]
    fn disabled_or_impossible_annotations_are_refused() {
        let refused = |pairs: &[(&str, &str)], config: &NetworkConfig| {
            PodNetworkAnnotations::read(&annotations(pairs), &AnnotationMap::new(), config)
                .unwrap_err()
                .message
        };
        let list = r#"["10.0.0.1"]"#;
        assert_eq!(
            refused(&[("ipAddrsNoIpam", list)], &ours()),
            "requested feature is not enabled: ip_addrs_no_ipam"
        );
        assert_eq!(
            refused(&[("ipAddrsNoIpam", list), ("ipAddrs", list)], &ours()),
            "can't have both annotations: 'ipAddrs' and 'ipAddrsNoIpam' in use at the same time"
        );
        assert_eq!(
            refused(&[("ipAddrs", list)], &config(r#","ipam":{"type":"host-local"}"#)),
            "ipAddrs is not compatible with configured IPAM: host-local"
        );
        assert_eq!(
            refused(&[("floatingIPs", list)], &ours()),
            "requested feature is not enabled: floating_ips"
        );
        let enabled = config(r#","ipam":{"type":"calico-ipam"},"feature_control":{"floating_ips":true}"#);
        let wished = PodNetworkAnnotations::read(
            &annotations(&[("floatingIPs", r#"["192.0.2.1","2001:db8::1"]"#)]),
            &AnnotationMap::new(),
            &enabled,
        );
        assert_eq!(
            wished.unwrap().floating,
            ["192.0.2.1".parse::<IpAddr>().unwrap(), "2001:db8::1".parse().unwrap()]
        );
        assert_eq!(refused(&[("floatingIPs", r#"["nowhere"]"#)], &enabled), "invalid IP format: nowhere");
        assert!(refused(&[("hwAddr", "1c:0c")], &ours()).contains("not a MAC address"));
        assert!(refused(&[("ipFamilies", r#"["IPv5"]"#)], &ours()).starts_with("error parsing ipFamilies: "));
    }
}
