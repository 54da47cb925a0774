//! Settings of controllers, singletons and node status requests.

use super::{paths, table, with};
use serde_json::{Value, json};
use tortie_model::Kind;

#[test]
fn settings_of_controllers() {
    let template = |change: Value| {
        let template = with(&json!({"generateName": "t", "interfaceCIDRs": ["192.0.2.0/24"]}), &change);
        json!({"controllers": {"node": {"hostEndpoint": {"autoCreate": "Enabled", "templates": [template]}}}})
    };
    let at = "Spec.Controllers.Node.HostEndpoint";
    let place = |field: &str| format!("{at}.Templates[0].{field}");
    let (name, cidrs, pattern) = (place("GenerateName"), place("InterfaceCIDRs"), place("InterfacePattern"));
    let (cidr, selector, label) = (place("InterfaceCIDRs[0]"), place("NodeSelector"), place("Labels[-a]"));
    table(
        Kind::KubeControllersConfiguration,
        "default",
        json!({"controllers": {}}),
        &[
            (json!({"controllers": null}), &["Spec.Controllers"]),
            (json!({"logSeverityScreen": "Panic"}), &[]),
            (json!({"logSeverityScreen": "Loud"}), &["Spec.LogSeverityScreen"]),
            (json!({"healthChecks": "Off"}), &["Spec.HealthChecks"]),
            (json!({"prometheusMetricsPort": 0, "debugProfilePort": 65535}), &[]),
            (json!({"prometheusMetricsPort": 65536}), &["Spec.PrometheusMetricsPort"]),
            (json!({"debugProfilePort": -1}), &["Spec.DebugProfilePort"]),
            (json!({"controllers": {"node": {"syncLabels": "x"}}}), &["Spec.Controllers.Node.SyncLabels"]),
            (
                json!({"controllers": {"loadBalancer": {"assignIPs": "x"}}}),
                &["Spec.Controllers.LoadBalancer.AssignIPs"],
            ),
            (
                json!({"controllers": {"migration": {"policyNameMigrator": "x"}}}),
                &["Spec.Controllers.Migration.PolicyNameMigrator"],
            ),
            (template(json!({})), &[]),
            (template(json!({"generateName": ""})), &[&name]),
            (template(json!({"interfaceCIDRs": null})), &[&cidrs]),
            (template(json!({"interfaceCIDRs": null, "interfacePattern": "eth.*"})), &[]),
            (template(json!({"interfaceCIDRs": ["x"]})), &[&cidr]),
            (template(json!({"interfacePattern": "("})), &[&pattern]),
            (template(json!({"nodeSelector": "!"})), &[&selector]),
            (template(json!({"labels": {"-a": "b"}})), &[&label]),
        ],
    );
    let twice = json!({"generateName": "t", "interfacePattern": "x"});
    let spec = json!({"controllers": {"node": {"hostEndpoint": {"templates": [twice, twice]}}}});
    assert_eq!(
        paths(Kind::KubeControllersConfiguration, "default", &spec),
        [format!("{at}.Templates[1].GenerateName")]
    );
}

#[test]
fn singletons_are_called_default() {
    let controllers = json!({"controllers": {}});
    for (kind, spec) in [
        (Kind::ClusterInformation, json!({})),
        (Kind::KubeControllersConfiguration, controllers),
        (Kind::IPAMConfiguration, json!({})),
    ] {
        assert_eq!(paths(kind, "default", &spec), [""; 0]);
        assert_eq!(paths(kind, "other", &spec), ["Metadata.Name"]);
    }
}

#[test]
fn node_status_requests() {
    table(
        Kind::CalicoNodeStatus,
        "s",
        json!({"node": "n1", "classes": ["Agent", "BGP", "Routes"], "updatePeriodSeconds": 0}),
        &[
            (json!({"node": null}), &["Spec.Node"]),
            (json!({"classes": null}), &["Spec.Classes"]),
            (json!({"classes": ["BGP", "BGP"]}), &["Spec.Classes[1]"]),
            (json!({"classes": ["Weather"]}), &["Spec.Classes[0]"]),
            (json!({"updatePeriodSeconds": null}), &["Spec.UpdatePeriodSeconds"]),
            (json!({"updatePeriodSeconds": 86400}), &[]),
            (json!({"updatePeriodSeconds": 86401}), &["Spec.UpdatePeriodSeconds"]),
        ],
    );
}
