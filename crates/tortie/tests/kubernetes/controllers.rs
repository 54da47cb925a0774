//! The controllers as `deploy/` installs them, with only the permissions that it grants.

use crate::cluster::KubernetesLab;
use tortie_testkit::eventually_showing;

const LOAD_BALANCER_POOL: &str = "
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: services}
spec: {cidr: 198.51.100.0/24, blockSize: 28, allowedUses: [LoadBalancer], nodeSelector: all(), assignmentMode: Automatic}
";

const LOAD_BALANCER_SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: outside, namespace: demo}
spec: {type: LoadBalancer, allocateLoadBalancerNodePorts: false, selector: {app: web}, ports: [{port: 80}]}
";

/// A policy as older versions stored it.
const OLD_POLICY: &str = "
apiVersion: crd.projectcalico.org/v1
kind: GlobalNetworkPolicy
metadata: {name: default.old, annotations: {projectcalico.org/metadata: '{}'}}
spec: {tier: default, selector: role == 'nobody', types: [Ingress]}
";

/// Checks that a policy is stored again under its own name.
pub fn give_policies_their_names(cluster: &KubernetesLab) {
    cluster.apply(OLD_POLICY);
    let names = || cluster.kubectl(&["get", "globalnetworkpolicies.crd.projectcalico.org", "-o", "name"]);
    let renamed = || names().contains("/old\n") && !names().contains("/default.old");
    eventually_showing("the policy has its own name", renamed, || logs(cluster));
    let shown = cluster.ctl(&["get", "globalnetworkpolicy", "old"]);
    assert!(shown.contains("old"), "{shown}");
    cluster.must_kubectl(&["delete", "globalnetworkpolicies.crd.projectcalico.org", "old"]);
}

/// Checks that one of two replicas is the leader, and that a service gets an address and releases it.
pub fn do_their_work(cluster: &KubernetesLab) {
    let replicas = || cluster.pods_of("kube-system", "k8s-app=tortie-controllers");
    let ready = || replicas().len() == 2 && replicas().iter().all(|pod| pod.ready);
    eventually_showing("two controllers are ready", ready, || cluster.picture());
    let lease =
        ["get", "lease", "-n", "kube-system", "tortie-controllers", "-o", "jsonpath={.spec.holderIdentity}"];
    let leads = || replicas().iter().any(|pod| pod.name == cluster.kubectl(&lease));
    eventually_showing("one of them leads", leads, || cluster.picture());

    cluster.ctl_apply(LOAD_BALANCER_POOL);
    cluster.apply(LOAD_BALANCER_SERVICE);
    let path = "jsonpath={.status.loadBalancer.ingress[0].ip}";
    let address = || cluster.kubectl(&["get", "service", "-n", "demo", "outside", "-o", path]);
    let given = || address().starts_with("198.51.100.");
    eventually_showing("the service has an address", given, || logs(cluster));
    let ip = format!("--ip={}", address());
    let shown = || cluster.ctl(&["ipam", "show", &ip]);
    assert!(!shown().contains("not assigned"), "{}", shown());
    cluster.delete(LOAD_BALANCER_SERVICE);
    eventually_showing("the address is given back", || shown().contains("not assigned"), shown);
    let refused: Vec<String> =
        logs(cluster).lines().filter(|line| line.contains("forbidden")).map(str::to_owned).collect();
    assert_eq!(refused, Vec::<String>::new(), "they lack rights");
}

fn logs(cluster: &KubernetesLab) -> String {
    cluster.kubectl(&["logs", "-n", "kube-system", "-l", "k8s-app=tortie-controllers", "--tail=-1"])
}
