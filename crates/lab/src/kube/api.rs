//! Gives kubectl access to Calico's objects: applies the API manifests of `deploy/` once there are nodes for their
//! pods.

use super::install::{WAIT_TIMEOUT_ARGUMENT, replaced, run, services_endpoint, set, write};
use super::{CalicoApiMode, KubernetesSettings, ProxyMode, dir};
use crate::cluster::{LabCluster, LabDatastore};
use crate::error::{LabError, LabResult};
use crate::place::LabPaths;
use crate::store;
use crate::up::print_progress;
use std::fs;

const APISERVER_MANIFEST: &str = include_str!("../../../../deploy/apiserver/apiserver.yaml");
const POLICIES_MANIFEST: &str = include_str!("../../../../deploy/webhooks/10-policies.yaml");
const WEBHOOKS_MANIFEST: &str = include_str!("../../../../deploy/webhooks/20-webhooks.yaml");
/// Replicas as in the manifests, limited by the number of nodes: a small lab starts faster with one.
const MAX_REPLICAS: usize = 2;

/// Applies the manifests and waits until the API is available.
pub async fn apply(place: &LabPaths, cluster: &LabCluster, kubernetes: &KubernetesSettings) -> LabResult<()> {
    let Some(api) = kubernetes.api else { return Ok(()) };
    let dir = dir(place).join("api");
    fs::create_dir_all(&dir).map_err(LabError::file(&dir))?;
    match api {
        CalicoApiMode::Aggregated => {
            write(&dir, "10-apiserver.yaml", &server(cluster)?)?;
            if kubernetes.proxy == ProxyMode::None {
                write(&dir, "20-services-endpoint.yaml", &services_endpoint("calico-apiserver"))?;
            }
        }
        CalicoApiMode::Crds => {
            write(&dir, "10-policies.yaml", POLICIES_MANIFEST)?;
            write(&dir, "20-webhooks.yaml", &with_replicas(WEBHOOKS_MANIFEST, cluster)?)?;
        }
    }
    run(place, cluster, &["apply", "--filename", &dir.display().to_string()]).await?;
    let answers = match api {
        CalicoApiMode::Aggregated => ["apiservice/v3.projectcalico.org", "--namespace=calico-apiserver"],
        CalicoApiMode::Crds => ["deployment/calico-webhooks", "--namespace=kube-system"],
    };
    run(
        place,
        cluster,
        &[&["wait", "--for=condition=Available", WAIT_TIMEOUT_ARGUMENT], &answers[..]].concat(),
    )
    .await?;
    print_progress(match api {
        CalicoApiMode::Aggregated => "API server of projectcalico.org/v3: ready",
        CalicoApiMode::Crds => "webhooks of projectcalico.org/v3: ready",
    });
    Ok(())
}

/// Renders the API server manifest for the lab's datastore.
fn server(cluster: &LabCluster) -> LabResult<String> {
    let text = with_replicas(APISERVER_MANIFEST, cluster)?;
    match cluster.datastore {
        LabDatastore::Kubernetes => Ok(text),
        LabDatastore::Embedded | LabDatastore::Etcd => {
            let kubernetes = "        - {name: DATASTORE_TYPE, value: kubernetes}\n";
            let etcd = format!(
                "        - {{name: DATASTORE_TYPE, value: etcdv3}}\n        - {{name: ETCD_ENDPOINTS, value: \"{}\"}}\n",
                store::store_url()
            );
            replaced(&text, kubernetes, &etcd)
        }
    }
}

fn with_replicas(manifest: &str, cluster: &LabCluster) -> LabResult<String> {
    set(manifest, "replicas", &cluster.nodes.len().min(MAX_REPLICAS).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::LabTopology;

    fn cluster(datastore: LabDatastore, nodes: u8) -> LabCluster {
        LabCluster::new(&LabPaths::new("lab", None).unwrap(), datastore, LabTopology::L2, nodes)
    }

    #[test]
    fn manifests_get_the_datastore_and_replicas() {
        let text = server(&cluster(LabDatastore::Kubernetes, 3)).unwrap();
        assert_eq!(text, APISERVER_MANIFEST);
        let text = server(&cluster(LabDatastore::Etcd, 1)).unwrap();
        for part in
            ["\n  replicas: 1\n", "value: etcdv3}", "{name: ETCD_ENDPOINTS, value: \"http://10.10.1.254:"]
        {
            assert!(text.contains(part), "{part}\n{text}");
        }
        let text = with_replicas(WEBHOOKS_MANIFEST, &cluster(LabDatastore::Kubernetes, 1)).unwrap();
        assert!(text.contains("\n  replicas: 1\n"), "{text}");
    }
}
