//! Installs Tortie in the lab's cluster: applies the manifests of `deploy/` with the lab's settings in the ConfigMap.

use super::{
    ApiGroup, KUBERNETES_READY_TIMEOUT, KubernetesSettings, PodNetwork, ProxyMode, control, credentials, dir,
};
use crate::bgp::BgpMode;
use crate::cluster::{LabCluster, LabDatastore};
use crate::error::{LabError, LabResult};
use crate::place::LabPaths;
use crate::{store, topology};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use tortie_model::schema;

/// Manifests are embedded, so that the lab applies the same files as users do.
const CRDS_MANIFEST: (&str, &str) = ("00-crds.yaml", include_str!("../../../../deploy/00-crds.yaml"));
const ACCESS_MANIFEST: (&str, &str) = ("10-access.yaml", include_str!("../../../../deploy/10-access.yaml"));
const NODE_MANIFEST: (&str, &str) = ("20-node.yaml", include_str!("../../../../deploy/20-node.yaml"));
const HUB_MANIFEST: (&str, &str) = ("40-hub.yaml", include_str!("../../../../deploy/40-hub.yaml"));
/// Name of the service in `HUB_MANIFEST`.
const HUB_SERVICE_NAME: &str = "calico-typha";
const CONTROLLERS_MANIFEST: (&str, &str) =
    ("30-controllers.yaml", include_str!("../../../../deploy/30-controllers.yaml"));
/// kubectl argument: time limit for `kubectl wait`.
pub const WAIT_TIMEOUT_ARGUMENT: &str = "--timeout=60s";
const KUBECTL_RETRY_DELAY: Duration = Duration::from_millis(500);

/// Applies the manifests. The pods of the DaemonSet start with the nodes.
pub async fn apply(place: &LabPaths, cluster: &LabCluster, kubernetes: &KubernetesSettings) -> LabResult<()> {
    let dir = dir(place).join("deploy");
    fs::create_dir_all(&dir).map_err(LabError::file(&dir))?;
    let mut node = configured(NODE_MANIFEST.1, cluster)?;
    if kubernetes.cni == PodNetwork::Ptp {
        node = for_policy_only(&node)?;
    }
    let kinds = match kubernetes.api_group {
        ApiGroup::V3 => write(&dir, CRDS_MANIFEST.0, CRDS_MANIFEST.1)?,
        ApiGroup::V1 => write(&dir, CRDS_MANIFEST.0, &kinds_of_first_group())?,
    };
    write(&dir, ACCESS_MANIFEST.0, ACCESS_MANIFEST.1)?;
    write(&dir, NODE_MANIFEST.0, &node)?;
    write(&dir, HUB_MANIFEST.0, &set(HUB_MANIFEST.1, "replicas", &cluster.hubs.to_string())?)?;
    write(&dir, CONTROLLERS_MANIFEST.0, CONTROLLERS_MANIFEST.1)?;
    if kubernetes.proxy == ProxyMode::None {
        write(&dir, "15-services-endpoint.yaml", &services_endpoint("kube-system"))?;
    }
    run(place, cluster, &["apply", "--filename", &dir.display().to_string()]).await?;
    if cluster.datastore == LabDatastore::Kubernetes {
        // The lab's own commands use the CRDs next.
        run(
            place,
            cluster,
            &["wait", "--for=condition=Established", WAIT_TIMEOUT_ARGUMENT, "--filename", &kinds],
        )
        .await?;
    }
    Ok(())
}

/// Sets the lab's options in the DaemonSet manifest. With default options the result equals the file in `deploy/`.
fn configured(manifest: &str, cluster: &LabCluster) -> LabResult<String> {
    let (datastore, endpoints) = match cluster.datastore {
        LabDatastore::Kubernetes => ("kubernetes", "\"\"".to_owned()),
        LabDatastore::Embedded | LabDatastore::Etcd => ("etcdv3", store::store_url()),
    };
    let pools = [false, true].map(|ipv6| cluster.first_pool(ipv6));
    let [v4_name, v6_name] = pools.map(|pool| pool.map_or("none".to_owned(), |pool| pool.to_string()));
    let [(v4_ipip, v4_vxlan), (_, v6_vxlan)] =
        pools.map(|pool| pool.map_or(("Never", "Never"), |pool| cluster.encap.modes(&pool)));
    let settings = [
        ("datastore_type", datastore.to_owned()),
        ("etcd_endpoints", endpoints),
        ("networking_backend", cluster.bgp.backend().to_owned()),
        ("typha_service_name", if cluster.hubs > 0 { HUB_SERVICE_NAME } else { "none" }.to_owned()),
        ("ipv4_pool", v4_name),
        ("ipv6_pool", v6_name),
        ("ipv4_pool_ipip", v4_ipip.to_owned()),
        ("ipv4_pool_vxlan", v4_vxlan.to_owned()),
        ("ipv6_pool_vxlan", v6_vxlan.to_owned()),
    ];
    let mut text = manifest.to_owned();
    for (setting, value) in settings {
        text = set(&text, setting, &value)?;
    }
    for (family, pool) in [4, 6].into_iter().zip(pools) {
        let assign = format!("\"assign_ipv{family}\": ");
        text = text.replace(&format!("{assign}\"true\""), &format!("{assign}\"{}\"", pool.is_some()));
    }
    if cluster.bgp == BgpMode::None {
        // Without BGP, nodes program the routes to each other's blocks themselves.
        text = with_variables(&text, &[("FELIX_PROGRAMCLUSTERROUTES", "Enabled")])?;
    }
    Ok(text)
}

/// Adds environment variables to the container of the DaemonSet.
fn with_variables(manifest: &str, variables: &[(&str, &str)]) -> LabResult<String> {
    let before = "        - {name: IP, value: autodetect}\n";
    let mut lines = String::new();
    for (name, value) in variables {
        lines += &format!("        - {{name: {name}, value: \"{value}\"}}\n");
    }
    replaced(manifest, before, &(lines + before))
}

/// Changes the DaemonSet for clusters where another CNI plugin connects pods: Tortie only enforces policy, and the lab
/// installs its plugin on the node.
fn for_policy_only(manifest: &str) -> LabResult<String> {
    let settings = [("networking_backend", "none"), ("ipv4_pool", "none"), ("ipv6_pool", "none")];
    let text =
        settings.into_iter().try_fold(manifest.to_owned(), |text, (name, value)| set(&text, name, value))?;
    let text = replaced(&text, "args: [node, --install-cni]", "args: [node]")?;
    with_variables(&text, &[("FELIX_INTERFACEPREFIX", "veth"), ("FELIX_ROUTESYNCDISABLED", "true")])
}

/// Replaces a text that must occur exactly once in the manifest.
pub fn replaced(manifest: &str, before: &str, after: &str) -> LabResult<String> {
    match manifest.matches(before).count() {
        1 => Ok(manifest.replace(before, after)),
        count => Err(LabError::refused(format!("the manifest has {count} times {before:?}"))),
    }
}

fn kinds_of_first_group() -> String {
    schema::storage_crds().iter().map(|crd| format!("---\n{crd}\n")).collect()
}

/// Replaces the value of a setting that must have exactly one line in the manifest, indented by two spaces.
pub fn set(text: &str, setting: &str, value: &str) -> LabResult<String> {
    let start = format!("  {setting}: ");
    let count = text.lines().filter(|line| line.starts_with(&start)).count();
    if count != 1 {
        return Err(LabError::refused(format!("the manifest has {count} lines for {setting}")));
    }
    let mut changed = String::new();
    for line in text.lines() {
        changed += &if line.starts_with(&start) { format!("{start}{value}\n") } else { format!("{line}\n") };
    }
    Ok(changed)
}

/// Renders the ConfigMap with the API server's real address: without kube-proxy its service address is not reachable.
pub fn services_endpoint(namespace: &str) -> String {
    let host = topology::gateway(1).ipv4;
    let port = credentials::API_PORT;
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: kubernetes-services-endpoint, namespace: {namespace}}}\n\
         data: {{KUBERNETES_SERVICE_HOST: \"{host}\", KUBERNETES_SERVICE_PORT: \"{port}\"}}\n"
    )
}

pub fn write(dir: &Path, name: &str, text: &str) -> LabResult<String> {
    let file = dir.join(name);
    fs::write(&file, text).map_err(LabError::file(&file))?;
    Ok(file.display().to_string())
}

/// Runs kubectl and retries for a while: a ready API server may not have created its namespaces yet.
pub async fn run(place: &LabPaths, cluster: &LabCluster, arguments: &[&str]) -> LabResult<()> {
    let deadline = Instant::now() + KUBERNETES_READY_TIMEOUT;
    loop {
        let Err(reason) = control::kubectl(place, cluster, arguments).await else { return Ok(()) };
        if Instant::now() > deadline {
            return Err(LabError::refused(format!("kubectl {}: {reason}", arguments.join(" "))));
        }
        tokio::time::sleep(KUBECTL_RETRY_DELAY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encap::PodEncapsulation;
    use crate::topology::LabTopology;

    fn cluster(bgp: BgpMode, encap: PodEncapsulation, datastore: LabDatastore, pools: &[&str]) -> LabCluster {
        let pools = pools.iter().map(|pool| pool.parse().unwrap()).collect();
        let place = LabPaths::new("lab", None).unwrap();
        LabCluster { bgp, encap, pools, ..LabCluster::new(&place, datastore, LabTopology::L2, 0) }
    }

    #[test]
    fn a_default_lab_applies_deploy_unchanged() {
        let pools = ["10.244.0.0/16", "fd00:10:244::/112"];
        let plain = cluster(BgpMode::Mesh, PodEncapsulation::None, LabDatastore::Kubernetes, &pools);
        assert_eq!(configured(NODE_MANIFEST.1, &plain).unwrap(), NODE_MANIFEST.1);
    }

    #[test]
    fn options_of_the_lab_reach_the_config_map() {
        let other =
            cluster(BgpMode::None, PodEncapsulation::IpipCross, LabDatastore::Embedded, &["10.99.0.0/16"]);
        let text = configured(NODE_MANIFEST.1, &other).unwrap();
        for line in [
            "  datastore_type: etcdv3\n",
            "  etcd_endpoints: http://10.10.1.254:",
            "  networking_backend: vxlan\n",
            "        - {name: FELIX_PROGRAMCLUSTERROUTES, value: \"Enabled\"}\n",
            "  ipv4_pool: 10.99.0.0/16\n",
            "  ipv6_pool: none\n",
            "  ipv4_pool_ipip: CrossSubnet\n",
            "\"assign_ipv4\": \"true\", \"assign_ipv6\": \"false\"",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(set(NODE_MANIFEST.1, "no_such_setting", "x").is_err());
        let text = for_policy_only(&text).unwrap();
        for line in [
            "  networking_backend: none\n",
            "args: [node]\n",
            "        - {name: FELIX_ROUTESYNCDISABLED, value: \"true\"}\n",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn hubs_of_the_lab_configure_pods_and_nodes() {
        let pools = ["10.244.0.0/16"];
        let two = LabCluster {
            hubs: 2,
            ..cluster(BgpMode::None, PodEncapsulation::None, LabDatastore::Kubernetes, &pools)
        };
        let text = configured(NODE_MANIFEST.1, &two).unwrap();
        assert!(text.contains("  typha_service_name: calico-typha\n"), "{text}");
        assert!(HUB_MANIFEST.1.contains("metadata: {name: calico-typha, namespace: kube-system"));
        assert!(set(HUB_MANIFEST.1, "replicas", "2").unwrap().contains("\n  replicas: 2\n"));
    }
}
