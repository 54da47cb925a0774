//! Settings of the node's daemon: accepted values, scopes, defaults, and the parameter table.

#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../src/schema/tests/admission.rs"]
mod admission;

use serde_json::{Value, json};
use std::collections::HashSet;
use tortie_model::kinds::FelixConfigurationSpec;
use tortie_model::scalar::GoDuration;
use tortie_model::schema::{admission_policies, json_schema};
use tortie_model::{Kind, Resource};

fn object(name: &str, spec: &Value) -> Value {
    json!({"kind": "FelixConfiguration", "apiVersion": "projectcalico.org/v3", "metadata": {"name": name}, "spec": spec})
}

fn read(name: &str, spec: &Value) -> Resource {
    Resource::from_user(object(name, spec)).unwrap_or_else(|error| panic!("{spec}: {error}"))
}

fn paths(name: &str, spec: &Value) -> Vec<String> {
    assert_eq!(admission::disagreement(&object(name, spec)), None);
    match read(name, spec).validate() {
        Ok(()) => Vec::new(),
        Err(error) => error.errors.into_iter().map(|error| error.name).collect(),
    }
}

#[test]
fn values_are_checked() {
    for (spec, expected) in [
        (json!({"logSeverityScreen": "debug"}), &[][..]),
        (json!({"logSeverityScreen": "loud"}), &["Spec.LogSeverityScreen"]),
        (json!({"defaultEndpointToHostAction": "ACCEPT"}), &[]),
        (json!({"defaultEndpointToHostAction": "Reject"}), &["Spec.DefaultEndpointToHostAction"]),
        (json!({"floatingIPs": "enabled"}), &["Spec.FloatingIPs"]),
        (json!({"logActionRateLimit": "10/second", "logActionRateLimitBurst": 9999}), &[]),
        (json!({"logActionRateLimit": "10/fortnight"}), &["Spec.LogActionRateLimit"]),
        (json!({"logActionRateLimitBurst": 10000}), &["Spec.LogActionRateLimitBurst"]),
        (json!({"logPrefix": "cali %t %n: "}), &[]),
        (json!({"logPrefix": "$(reboot)"}), &["Spec.LogPrefix"]),
        (json!({"healthPort": 9099}), &[]),
        (json!({"healthPort": 65536}), &["Spec.HealthPort"]),
        (json!({"iptablesMarkMask": 0xffff0000u32}), &[]),
        (json!({"iptablesMarkMask": 0x10000}), &["Spec.IptablesMarkMask"]),
        (json!({"nftablesMarkMask": 0x1ffffffffu64}), &["Spec.NftablesMarkMask"]),
        (json!({"natOutgoingAddress": "192.0.2.1"}), &[]),
        (json!({"natOutgoingAddress": "2001:db8::1"}), &["Spec.NATOutgoingAddress"]),
        (json!({"deviceRouteSourceAddressIPv6": "192.0.2.1"}), &["Spec.DeviceRouteSourceAddressIPv6"]),
        (json!({"natPortRange": "32768:65535"}), &[]),
        (json!({"natPortRange": "http"}), &["Spec.NATPortRange"]),
        (json!({"kubeNodePortRanges": [8080, "30000:32767"]}), &[]),
        (json!({"kubeNodePortRanges": vec![1; 8]}), &["Spec.KubeNodePortRanges"]),
        (json!({"kubeNodePortRanges": ["http"]}), &["Spec.KubeNodePortRanges[0]"]),
        (json!({"externalNodesList": ["192.0.2.0/24", "192.0.2.1"]}), &[]),
        (json!({"externalNodesList": ["2001:db8::/32"]}), &["Spec.ExternalNodesList[0]"]),
        (json!({"failsafeInboundHostPorts": []}), &[]),
        (json!({"failsafeInboundHostPorts": [{"protocol": "udp", "port": 68, "net": "10.0.0.0/8"}]}), &[]),
        (
            json!({"failsafeInboundHostPorts": [{"protocol": "icmp", "port": 0, "net": "x"}]}),
            &[
                "Spec.FailsafeInboundHostPorts[0].Protocol",
                "Spec.FailsafeInboundHostPorts[0].Port",
                "Spec.FailsafeInboundHostPorts[0].Net",
            ],
        ),
        (json!({"routeTableRange": {"min": 1, "max": 250}}), &[]),
        (
            json!({"routeTableRange": {"min": 0, "max": 251}}),
            &["Spec.RouteTableRange.Min", "Spec.RouteTableRange.Max"],
        ),
        (json!({"routeTableRanges": [{"min": 10, "max": 5}]}), &["Spec.RouteTableRanges[0].Min"]),
        (
            json!({"routeTableRange": {"min": 1, "max": 2}, "routeTableRanges": [{"min": 1, "max": 2}]}),
            &["Spec.RouteTableRange"],
        ),
        (json!({"ipv4NormalRoutePriority": 0}), &["Spec.IPv4NormalRoutePriority"]),
        (json!({"ipv6ElevatedRoutePriority": 2147483646}), &[]),
        (json!({"mtuIfacePattern": "^(eth.*"}), &["Spec.MTUIfacePattern"]),
        (json!({"mtuIfacePattern": "^(eth.*)"}), &[]),
        (json!({"wireguardInterfaceName": "not an interface"}), &["Spec.WireguardInterfaceName"]),
        (json!({"openstackRegion": "north-1"}), &[]),
        (json!({"openstackRegion": "north/1"}), &["Spec.OpenstackRegion"]),
        (json!({"openstackRegion": "x".repeat(47)}), &["Spec.OpenstackRegion"]),
        (json!({"featureDetectOverride": "A=true,B="}), &[]),
        (json!({"featureDetectOverride": "A=yes"}), &["Spec.FeatureDetectOverride"]),
        (json!({"goMaxProcs": -1}), &[]),
        (json!({"goMaxProcs": -2}), &["Spec.GoMaxProcs"]),
        (json!({"reportingInterval": "0s"}), &[]),
        (json!({"reportingInterval": "-1s"}), &["Spec.ReportingInterval"]),
        (
            json!({"healthTimeoutOverrides": [{"name": "", "timeout": "10s"}]}),
            &["Spec.HealthTimeoutOverrides[0].Name"],
        ),
        (json!({"bpfConntrackTimeouts": {"tcpFinsSeen": "Auto", "udpTimeout": "1m"}}), &[]),
        (json!({"bpfConntrackTimeouts": {"udpTimeout": "soon"}}), &["Spec.BPFConntrackTimeouts.UdpTimeout"]),
        (json!({"istioDSCPMark": 64}), &["Spec.IstioDSCPMark"]),
    ] {
        assert_eq!(paths("default", &spec), expected, "{spec}");
    }
}

#[test]
fn selectors_are_for_objects_that_name_no_node() {
    let spec = json!({"nodeSelector": "gpu == 'yes'"});
    assert_eq!(paths("gpu-nodes", &spec), [""; 0]);
    assert_eq!(paths("default", &spec), ["Spec.NodeSelector"]);
    assert_eq!(paths("node.n1", &spec), ["Spec.NodeSelector"]);
    assert_eq!(paths("gpu-nodes", &json!({"nodeSelector": "gpu =="})), ["Spec.NodeSelector"]);
}

#[test]
fn defaults_are_stored() {
    let defaulted = |spec: Value| {
        let mut resource = read("node.n1", &spec);
        resource.set_defaults();
        resource.to_value()["spec"].clone()
    };
    assert_eq!(
        defaulted(json!({})),
        json!({"nftablesMode": "Auto", "nftablesFlowTableOffload": "Disabled", "bpfLogLevel": "",
            "bpfConnectTimeLoadBalancing": "TCP", "bpfHostNetworkedNATWithoutCTLB": "Enabled",
            "floatingIPs": "Disabled"})
    );
    for (enabled, mode) in [(true, "Enabled"), (false, "Disabled")] {
        let spec = defaulted(json!({"bpfConnectTimeLoadBalancingEnabled": enabled}));
        assert_eq!(spec["bpfConnectTimeLoadBalancing"], mode);
        assert_eq!(spec["bpfHostNetworkedNATWithoutCTLB"], "Disabled");
    }
    assert_eq!(defaulted(json!({"nftablesMode": "Enabled"}))["nftablesMode"], "Enabled");
}

#[test]
fn the_table_has_every_parameter_once() {
    let mut keys = HashSet::new();
    let mut names = HashSet::new();
    for parameter in FelixConfigurationSpec::PARAMETERS {
        assert!(keys.insert(parameter.key), "{}", parameter.key);
        assert!(names.insert(parameter.name.to_lowercase()), "{}", parameter.name);
    }
    for key in [
        "logFilePath",
        "endpointStatusPathPrefix",
        "serviceLoopPrevention",
        "maxIpsetSize",
        "vxlanMTUV6",
        "wireguardEnabledV6",
        "deviceRouteSourceAddressIPv6",
        "bpfMapSizeIfState",
        "flowLogsGoldmaneServer",
        "awsSrcDstCheck",
        "metadataPort",
        "featureGates",
        "goGCThreshold",
        "liveMigrationRouteConvergenceTime",
    ] {
        assert!(keys.contains(key), "{key}");
    }
    let name_of = |key: &str| FelixConfigurationSpec::PARAMETERS.iter().find(|p| p.key == key).unwrap().name;
    assert_eq!(name_of("ipipEnabled"), "IpInIpEnabled");
    assert_eq!(name_of("externalNodesList"), "ExternalNodesCIDRList");
    assert_eq!(name_of("wireguardKeepAlive"), "WireguardPersistentKeepAlive");
}

/// Every default that an object can represent must be accepted in one.
#[test]
fn documented_defaults_are_accepted() {
    for parameter in FelixConfigurationSpec::PARAMETERS {
        let number = parameter.default.parse::<i64>().map(Value::from);
        let flag = parameter.default.parse::<bool>().map(Value::from);
        let value = number.or(flag).unwrap_or_else(|_| Value::from(parameter.default));
        let object = json!({"kind": "FelixConfiguration", "apiVersion": "projectcalico.org/v3",
            "metadata": {"name": "default"}, "spec": {parameter.key: value}});
        if let Ok(resource) = Resource::from_user(object) {
            let result = resource.validate();
            assert!(result.is_ok(), "{} = {}: {result:?}", parameter.key, parameter.default);
        }
    }
}

#[test]
fn the_schema_tells_accepted_values() {
    let schema = serde_json::to_value(schemars::schema_for!(FelixConfigurationSpec)).unwrap();
    let property = |key: &str| &schema["properties"][key];
    assert_eq!(property("chainInsertMode")["pattern"], "^(?i)(Insert|Append)?$");
    assert_eq!(property("floatingIPs")["enum"], json!(["Enabled", "Disabled"]));
    assert_eq!(property("healthPort")["maximum"], 65535);
    assert_eq!(property("healthPort")["description"], "Default: 9099");
    assert_eq!(property("nodeSelector")["maxLength"], 1024);
}
