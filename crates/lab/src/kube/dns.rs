//! Cluster DNS of the lab: CoreDNS as a Deployment, behind the service `kube-dns`. kubelet writes the address of the service into the pods.
//! CoreDNS answers for the cluster domain only, because the lab has no other network.

use super::image::ContainerImage;
use super::install::{run, write};
use super::{KUBERNETES_READY_TIMEOUT, KubernetesSettings, dir, programs};
use crate::cluster::LabCluster;
use crate::error::{LabError, LabResult};
use crate::place::LabPaths;
use crate::up::print_progress;
use std::fs;
use std::path::Path;

/// Address of the service, in the first of `SERVICE_RANGES`.
pub const DNS_SERVICE_ADDRESS: &str = "10.96.0.10";
pub const CLUSTER_DOMAIN: &str = "cluster.local";
const COREDNS_IMAGE: &str = "localhost/coredns:lab";
const DNS_MANIFEST: &str = include_str!("dns.yaml");

/// Writes the image of CoreDNS for the nodes.
pub fn write_image(kubernetes: &KubernetesSettings, file: &Path) -> LabResult<()> {
    ContainerImage::program(&kubernetes.program(programs::DNS_PROGRAM), COREDNS_IMAGE)?.write(file)
}

/// Applies the manifest and waits until CoreDNS answers.
pub async fn apply(place: &LabPaths, cluster: &LabCluster, kubernetes: &KubernetesSettings) -> LabResult<()> {
    if !kubernetes.dns {
        return Ok(());
    }
    let dir = dir(place).join("dns");
    fs::create_dir_all(&dir).map_err(LabError::file(&dir))?;
    let file = write(&dir, "coredns.yaml", DNS_MANIFEST)?;
    run(place, cluster, &["apply", "--filename", &file]).await?;
    let timeout = format!("--timeout={}s", KUBERNETES_READY_TIMEOUT.as_secs());
    let words = ["rollout", "status", "deployment/coredns", "--namespace=kube-system", &timeout];
    run(place, cluster, &words).await?;
    print_progress("cluster DNS: ready");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::SERVICE_RANGES;
    use std::net::IpAddr;

    #[test]
    fn the_manifest_matches_the_settings_of_kubelet() {
        let address: IpAddr = DNS_SERVICE_ADDRESS.parse().unwrap();
        let range: ipnet::IpNet = SERVICE_RANGES[0].parse().unwrap();
        assert!(range.contains(&address));
        for part in [
            format!("clusterIP: {DNS_SERVICE_ADDRESS}\n"),
            format!("kubernetes {CLUSTER_DOMAIN} "),
            format!("image: {COREDNS_IMAGE}\n"),
        ] {
            assert_eq!(DNS_MANIFEST.matches(&part).count(), 1, "{part}");
        }
    }
}
