//! Tests of the manifests in `deploy/`: the Helm chart with its default values equals them, and those of
//! `deploy/policy-only` are derived from them. The tests that render other values of the chart run the real Helm if
//! `TORTIE_HELM` names its path (`scripts/helm/build` builds it).

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use tortie_model::codec;

/// Each template with its manifest; monitoring.yaml and csi.yaml are empty with the default values.
const TEMPLATES: [(&str, &str); 4] = [
    ("access", "10-access.yaml"),
    ("node", "20-node.yaml"),
    ("controllers", "30-controllers.yaml"),
    ("hub", "40-hub.yaml"),
];
/// kubelet's directory of FlexVolume drivers.
const KUBELET_DRIVERS: &str = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec";
/// Values that a template counts as false.
const EMPTY_VALUES: [&str; 5] = ["\"\"", "[]", "{}", "false", "0"];

type ObjectsById = BTreeMap<(String, String), Value>;

fn deploy_file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name)
}

fn read_deploy(name: &str) -> String {
    fs::read_to_string(deploy_file(name)).unwrap()
}

/// Returns the default values by name.
fn default_values() -> BTreeMap<String, String> {
    let text = read_deploy("chart/values.yaml");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.map(|line| line.split_once(": ").unwrap());
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Renders the small part of Helm's language that the templates use.
fn render_defaults(template: &str) -> String {
    render_template(template, &default_values())
}

fn render_template(template: &str, values: &BTreeMap<String, String>) -> String {
    let mut rendered = String::new();
    let mut conditions = Vec::new();
    for line in template.lines() {
        match line.strip_prefix("{{- ").and_then(|line| line.strip_suffix(" }}")) {
            Some("end") => drop(conditions.pop().unwrap()),
            Some(condition) => {
                let name = condition.rsplit_once(".Values.").unwrap().1;
                conditions.push(!EMPTY_VALUES.contains(&values[name].as_str()));
            }
            None if !conditions.contains(&false) => rendered += &format!("{line}\n"),
            None => {}
        }
    }
    for (name, value) in values {
        for form in ["", " | quote", " | toJson"] {
            rendered = rendered.replace(&format!("{{{{ .Values.{name}{form} }}}}"), value);
        }
    }
    rendered
}

#[test]
fn the_chart_with_default_values_equals_the_manifest() {
    for (template, manifest) in TEMPLATES {
        let rendered = render_defaults(&read_deploy(&format!("chart/templates/{template}.yaml")));
        assert_eq!(rendered, read_deploy(manifest), "{manifest}");
    }
    assert_eq!(render_defaults(&read_deploy("chart/templates/monitoring.yaml")), "");
    assert_eq!(render_defaults(&read_deploy("chart/templates/csi.yaml")), "");
}

#[test]
fn the_csi_driver_of_the_chart_equals_the_manifest() {
    let mut values = default_values();
    values.insert("csiDriver".to_owned(), "true".to_owned());
    let rendered = render_template(&read_deploy("chart/templates/csi.yaml"), &values);
    assert_eq!(rendered, read_deploy("l7/10-csi.yaml"));
    values.insert("flexVolumeDir".to_owned(), KUBELET_DRIVERS.to_owned());
    let rendered = render_template(&read_deploy("chart/templates/csi.yaml"), &values);
    assert_eq!(rendered, read_deploy("l7/11-csi-flexvolume.yaml"));
}

/// Many keep an edited ConfigMap when they upgrade. A container whose required key is missing does not start.
#[test]
fn settings_that_older_versions_lack_are_optional() {
    for manifest in ["20-node.yaml", "30-controllers.yaml", "40-hub.yaml"] {
        let text = read_deploy(manifest);
        for key in ["etcd_ca", "etcd_cert", "etcd_key"] {
            let reference = format!("configMapKeyRef: {{name: tortie-config, key: {key}, optional: true}}");
            assert!(text.contains(&reference), "{manifest}: {key}");
        }
    }
}

/// A cluster whose own plugin connects the pods.
struct PolicyOnlyPlatform {
    file: &'static str,
    platform: &'static str,
    interface_prefix: &'static str,
    /// Other variables that the platform needs.
    variables: &'static [(&'static str, &'static str)],
}

const PLATFORMS: [PolicyOnlyPlatform; 3] = [
    PolicyOnlyPlatform {
        file: "eks",
        platform: "EKS with the VPC CNI plugin of AWS",
        interface_prefix: "eni",
        // As in Calico's operator: rules of the platform's plugin follow ours.
        variables: &[("FELIX_IPTABLESMANGLEALLOWACTION", "Return")],
    },
    PolicyOnlyPlatform {
        file: "aks",
        platform: "AKS with Azure CNI in transparent mode",
        interface_prefix: "azv",
        variables: &[],
    },
    PolicyOnlyPlatform {
        file: "gke",
        platform: "GKE with intranode visibility, without Dataplane V2",
        interface_prefix: "gke",
        variables: &[
            ("FELIX_IPTABLESMANGLEALLOWACTION", "Return"),
            ("FELIX_IPTABLESFILTERALLOWACTION", "Return"),
        ],
    },
];

/// Derives the manifest of the daemon for a platform from `deploy/20-node.yaml`.
fn policy_only_manifest(platform: &PolicyOnlyPlatform) -> String {
    let mut manifest = format!(
        "# The node daemon for {}: it enforces policy on the interfaces {}*, and leaves pods, routes and\n\
         # addresses to that plugin. Apply it instead of 20-node.yaml. `make deploy-crds` derives this file from it.\n",
        platform.platform, platform.interface_prefix
    );
    let text = read_deploy("20-node.yaml");
    // The network configuration is the last setting, and only Tortie's own plugins need these mounts.
    let settings = text.split_once("  # CNI network configuration").unwrap();
    let daemon_set = settings.1.split_once("---\n").unwrap().1;
    for line in settings.0.lines().skip(1).chain(["---"]).chain(daemon_set.lines()) {
        let is_cni = ["CNI_NETWORK_CONFIG", "cni-bin", "cni-net", "cni-state", "passes them to the plugins"]
            .iter()
            .any(|word| line.contains(word));
        if is_cni {
            continue;
        }
        let line = match line.split_once(": ") {
            Some(("  networking_backend", _)) => "  networking_backend: none",
            Some(("  ipv4_pool", _)) => "  ipv4_pool: none",
            Some(("  ipv6_pool", _)) => "  ipv6_pool: none",
            _ => line,
        };
        manifest += &format!("{}\n", line.replace("[node, --install-cni]", "[node]"));
        if line.contains("name: FELIX_HEALTHENABLED") {
            let common =
                [("FELIX_INTERFACEPREFIX", platform.interface_prefix), ("FELIX_ROUTESYNCDISABLED", "true")];
            for (name, value) in common.iter().chain(platform.variables) {
                manifest += &format!("        - {{name: {name}, value: \"{value}\"}}\n");
            }
        }
    }
    manifest
}

/// `TORTIE_REFRESH=1` writes the files instead.
#[test]
fn policy_only_manifests_are_derived_from_the_daemon_set() {
    for platform in &PLATFORMS {
        let file = deploy_file(&format!("policy-only/{}.yaml", platform.file));
        let derived = policy_only_manifest(platform);
        if std::env::var_os("TORTIE_REFRESH").is_some() {
            fs::write(&file, &derived).unwrap();
        }
        assert_eq!(
            fs::read_to_string(&file).unwrap(),
            derived,
            "`make deploy-crds` writes {}",
            file.display()
        );
    }
}

/// A misspelt metric would make an alert that never fires.
#[test]
fn the_chart_alerts_on_existing_metrics() {
    let known = read_deploy("../docs/reference/metrics.md") + &read_deploy("../docs/controllers.md");
    let rules = read_deploy("chart/templates/monitoring.yaml");
    let expressions: Vec<&str> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("expr: ")).collect();
    assert!(expressions.len() >= 8, "{rules}");
    for expression in expressions {
        let mut words = expression.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        let metric = words.find(|word| word.contains('_')).unwrap();
        assert!(known.contains(&format!("`{metric}`")), "{metric} is not a metric of Tortie");
    }
}

/// Returns the objects by kind and name.
fn objects(text: &str) -> ObjectsById {
    let objects = codec::documents(text.as_bytes()).unwrap().into_iter().map(|object| {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap().to_owned();
        ((text("/kind"), format!("{} {}", text("/apiVersion"), text("/metadata/name"))), object)
    });
    objects.collect()
}

/// Renders the chart with the real Helm; `None` if none is configured.
fn render_with_helm(values: &str) -> Option<ObjectsById> {
    let helm: OsString = std::env::var_os("TORTIE_HELM")?;
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), values).unwrap();
    let mut command = Command::new(helm);
    command.args(["template", "tortie", "--include-crds"]).arg(deploy_file("chart"));
    let output = command.arg("--values").arg(file.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    Some(objects(&String::from_utf8(output.stdout).unwrap()))
}

fn value_at(objects: &ObjectsById, kind: &str, name: &str, pointer: &str) -> Value {
    objects[&(kind.to_owned(), name.to_owned())].pointer(pointer).cloned().unwrap_or_default()
}

#[test]
fn the_chart_of_helm_equals_the_manifests() {
    let Some(made) = render_with_helm("") else { return };
    let manifests = ["00-crds.yaml"].into_iter().chain(TEMPLATES.map(|(_, manifest)| manifest));
    let manifests: ObjectsById = manifests.flat_map(|file| objects(&read_deploy(file))).collect();
    assert_eq!(made.keys().collect::<Vec<_>>(), manifests.keys().collect::<Vec<_>>());
    for (id, object) in &made {
        assert_eq!(object, &manifests[id], "{id:?}");
    }
}

const OTHER_VALUES: &str = "
image: registry.example/tortie:1
imagePullPolicy: Always
imagePullSecrets: [{name: registry}]
datastoreType: etcdv3
etcdEndpoints: https://e:2379
etcdCa: /calico-secrets/etcd-ca
etcdCert: /calico-secrets/etcd-cert
etcdKey: /calico-secrets/etcd-key
ipv4PoolVxlan: CrossSubnet
wireguard: true
bgpSecrets: []
hubReplicas: 3
typhaServiceName: calico-typha
controllersReplicas: 1
nodeResources: {limits: {memory: 1Gi}}
nodeTolerations: [{key: a, operator: Exists}]
controllersResources: {limits: {memory: 2Gi}}
controllersTolerations: []
hubResources: {limits: {memory: 3Gi}}
hubTolerations: [{key: b, operator: Exists}]
metrics: true
podMonitor: true
alertRules: true
csiDriver: true
flexVolumeDir: /opt/volumes
";
const WORKLOADS: [(&str, &str); 3] = [
    ("DaemonSet", "apps/v1 tortie-node"),
    ("Deployment", "apps/v1 tortie-controllers"),
    ("Deployment", "apps/v1 tortie-hub"),
];

#[test]
fn the_chart_passes_every_value_on() {
    let Some(made) = render_with_helm(OTHER_VALUES) else { return };
    let pod = |(kind, name): (&str, &str), pointer: &str| {
        value_at(&made, kind, name, &format!("/spec/template/spec{pointer}"))
    };
    for workload in WORKLOADS {
        assert_eq!(pod(workload, "/containers/0/image"), "registry.example/tortie:1");
        assert_eq!(pod(workload, "/containers/0/imagePullPolicy"), "Always");
        assert_eq!(pod(workload, "/imagePullSecrets"), json!([{"name": "registry"}]));
    }
    let limits = WORKLOADS.map(|workload| pod(workload, "/containers/0/resources/limits/memory"));
    assert_eq!(limits, ["1Gi", "2Gi", "3Gi"]);
    let tolerations = WORKLOADS.map(|workload| pod(workload, "/tolerations"));
    let tolerated = |key: &str| json!([{"key": key, "operator": "Exists"}]);
    assert_eq!(tolerations, [tolerated("a"), json!([]), tolerated("b")]);
    for ((kind, name), replicas) in WORKLOADS.into_iter().skip(1).zip([1, 3]) {
        assert_eq!(value_at(&made, kind, name, "/spec/replicas"), replicas);
    }
    let config = value_at(&made, "ConfigMap", "v1 tortie-config", "/data");
    for (name, value) in [
        ("datastore_type", "etcdv3"),
        ("etcd_endpoints", "https://e:2379"),
        ("etcd_ca", "/calico-secrets/etcd-ca"),
        ("etcd_cert", "/calico-secrets/etcd-cert"),
        ("etcd_key", "/calico-secrets/etcd-key"),
        ("ipv4_pool_vxlan", "CrossSubnet"),
        ("typha_service_name", "calico-typha"),
    ] {
        assert_eq!(config[name], value, "{name}");
    }
    let variables = pod(WORKLOADS[0], "/containers/0/env").to_string();
    for name in ["FELIX_WIREGUARDENABLED", "FELIX_WIREGUARDENABLEDV6", "FELIX_PROMETHEUSMETRICSENABLED"] {
        assert!(variables.contains(&json!({"name": name, "value": "true"}).to_string()), "{variables}");
    }
    // A role without names would allow every Secret of the namespace.
    let secrets = "rbac.authorization.k8s.io/v1 tortie-bgp-secrets";
    for kind in ["Role", "RoleBinding"] {
        assert!(!made.contains_key(&(kind.to_owned(), secrets.to_owned())));
    }
    let monitor = value_at(&made, "PodMonitor", "monitoring.coreos.com/v1 tortie", "/spec");
    let monitored = &monitor["selector"]["matchExpressions"][0];
    for workload in WORKLOADS {
        let (kind, name) = workload;
        let label = value_at(&made, kind, name, "/spec/template/metadata/labels/k8s-app");
        assert!(monitored["values"].as_array().unwrap().contains(&label), "{label}");
        let ports = pod(workload, "/containers/0/ports");
        let is_metrics = |port: &Value| port["name"] == monitor["podMetricsEndpoints"][0]["port"];
        assert!(ports.as_array().unwrap().iter().any(is_metrics), "{ports}");
    }
    let driver = ("DaemonSet", "apps/v1 csi-node-driver");
    assert_eq!(pod(driver, "/containers/0/volumeMounts/2/mountPath"), "/opt/volumes");
    let rules = value_at(&made, "PrometheusRule", "monitoring.coreos.com/v1 tortie", "/spec/groups/0/rules");
    assert!(rules.as_array().unwrap().len() >= 8, "{rules}");
}
