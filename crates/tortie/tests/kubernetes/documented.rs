//! The commands of docs/kubernetes.md, run as they are written, and the lab's tools on the cluster that they make.

use crate::cluster::KubernetesLab;
use serde_json::Value;
use tortie_testkit::{eventually, eventually_showing};

const PAGE: &str = include_str!("../../../../docs/kubernetes.md");
const PODS: &str = "app=web";
const SERVER: &str = "
apiVersion: v1
kind: Pod
metadata: {name: server, labels: {app: server}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: web
    image: busybox:1
    command: [sh, -c, 'mkdir /www && hostname >/www/name && exec httpd -f -p 8080 -h /www']
";

/// Returns the commands of the first section, without comments.
fn documented_commands() -> Vec<&'static str> {
    let (_, block) = PAGE.split_once("## From nothing to pods across nodes").unwrap();
    let (_, block) = block.split_once("```console\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    block.lines().map(|line| line.split("  #").next().unwrap().trim()).collect()
}

const CALICOCTL: &str = "
apiVersion: v1
kind: Pod
metadata: {name: calicoctl, namespace: kube-system}
spec:
  serviceAccountName: tortie-node
  restartPolicy: Never
  containers:
  - name: calicoctl
    image: localhost/tortie:latest
    imagePullPolicy: Never
    command: [/usr/bin/calicoctl, get, nodes]
    env: [{name: DATASTORE_TYPE, value: kubernetes}]
";

#[test]
fn the_documented_commands_connect_pods() {
    let commands = documented_commands();
    assert_eq!((commands[0], *commands.last().unwrap()), ("make kube", "tortie lab down"));
    let cluster = KubernetesLab::new();
    let (down, rest) = commands[1..].split_last().unwrap();
    for command in rest {
        cluster.shell(command);
    }
    pods_ping_across_nodes(&cluster);
    let routes = cluster.shell("tortie lab exec node1 -- ip route");
    assert!(routes.contains("via 10."), "no route to a block of the other node:\n{routes}");
    the_tools_show_the_pods(&cluster);
    names_of_services_are_resolved(&cluster);
    the_control_plane_reaches_pods(&cluster);
    calicoctl_of_the_image_works(&cluster);
    services_are_explained(&cluster);
    images_are_loaded(&cluster);
    deleted_pods_are_no_losses(&cluster);
    cluster.shell(down);
    cluster.down_already();
}

fn pods_ping_across_nodes(cluster: &KubernetesLab) {
    eventually_showing(
        "the pods are ready",
        || {
            let pods = cluster.pods_of("default", PODS);
            pods.len() == 4 && pods.iter().all(|pod| pod.ready && !pod.addresses.is_empty())
        },
        || cluster.picture(),
    );
    let pods = cluster.pods_of("default", PODS);
    assert!(["node1", "node2"].iter().all(|node| pods.iter().any(|pod| pod.node == *node)), "{pods:?}");
    for from in &pods {
        for to in pods.iter().filter(|to| to.node != from.node) {
            let ping = ["kubectl", "exec", &from.name, "--", "ping", "-c", "1", "-w", "20"];
            let address = to.addresses[0].to_string();
            cluster.must(&[&ping[..], &[&address]].concat());
        }
    }
}

/// `lab status` and `lab top` show the pods of Kubernetes.
fn the_tools_show_the_pods(cluster: &KubernetesLab) {
    let pods = cluster.pods_of("default", PODS);
    let status: Value = serde_json::from_str(&cluster.must(&["status", "-o", "json"])).unwrap();
    for pod in &pods {
        let node = status["nodes"].as_array().unwrap().iter().find(|node| node["name"] == *pod.node).unwrap();
        let shown = node["pods"].as_array().unwrap().iter().find(|shown| shown["name"] == *pod.name);
        let shown = shown.unwrap_or_else(|| panic!("{} is not in {node}", pod.name));
        assert_eq!(shown["addresses"][0], pod.addresses[0].to_string(), "{shown}");
    }
    let table = cluster.must(&["top", "--count", "1", "--interval", "1"]);
    let counted = |name: &str| {
        let row =
            table.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {table}"));
        // Name, state, processor time, memory with its unit, pods.
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(cells[1], "running", "{table}");
        cells[5].parse::<usize>().unwrap()
    };
    for node in ["node1", "node2"] {
        assert!(counted(node) >= pods.iter().filter(|pod| pod.node == node).count(), "{node}: {table}");
    }
}

/// As in the first recipes of Kubernetes' documentation: a server, its service, and a client that uses the name.
fn names_of_services_are_resolved(cluster: &KubernetesLab) {
    cluster.apply(SERVER);
    cluster.must_kubectl(&["expose", "pod", "server", "--port", "80", "--target-port", "8080"]);
    let client = &cluster.pods_of("default", PODS)[0];
    let show = || {
        let output = cluster.run_kubectl(&["exec", &client.name, "--", "cat", "/etc/resolv.conf"]);
        format!("{output:?}\n{}", cluster.picture())
    };
    for name in ["server", "server.default", "server.default.svc.cluster.local"] {
        let fetch =
            ["exec", &client.name, "--", "wget", "-q", "-O-", "-T", "5", &format!("http://{name}/name")];
        eventually_showing(
            &format!("wget fetches from http://{name}"),
            || cluster.kubectl(&fetch).trim() == "server",
            || format!("{:?}\n{}", cluster.run_kubectl(&fetch), show()),
        );
    }
    let lookup = ["exec", &client.name, "--", "nslookup", "nobody.default.svc.cluster.local"];
    assert!(cluster.run_kubectl(&lookup).1.contains("NXDOMAIN"), "{:?}", cluster.run_kubectl(&lookup));
}

/// kube-apiserver connects to pods: `kubectl port-forward` needs only kubelet, but the API proxy and webhooks need this.
fn the_control_plane_reaches_pods(cluster: &KubernetesLab) {
    for path in ["pods/server:8080", "services/server:80"] {
        let path = format!("/api/v1/namespaces/default/{path}/proxy/name");
        eventually_showing(
            &format!("kube-apiserver fetches {path}"),
            || cluster.kubectl(&["get", "--raw", &path]).trim() == "server",
            || format!("{:?}\n{}", cluster.run_kubectl(&["get", "--raw", &path]), cluster.picture()),
        );
    }
    cluster.must_kubectl(&["delete", "pod,service", "server", "--now"]);
}

/// `explain` resolves the address of a service to its endpoints.
fn services_are_explained(cluster: &KubernetesLab) {
    cluster.must_kubectl(&["expose", "deployment", "web", "--port", "80", "--target-port", "8080"]);
    cluster.must_kubectl(&["patch", "service", "web", "-p", r#"{"spec": {"sessionAffinity": "ClientIP"}}"#]);
    let pods = cluster.pods_of("default", PODS);
    let from = format!("default/{}", pods[0].name);
    let address = cluster.must_kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]);
    let explain = |to: &str, port: &str| {
        let output = cluster.run(&["explain", "--from", &from, "--to", to, "--port", port]);
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    eventually_showing(
        "the service has all endpoints",
        || explain(&address, "80").1.contains("ready endpoints: 4"),
        || explain(&address, "80").1,
    );
    let (code, text) = explain("service:default/web", "80");
    assert_eq!(code, Some(0), "{text}");
    for pod in &pods {
        assert!(text.contains(&format!("default/{} ({}", pod.name, pod.addresses[0])), "{text}");
    }
    assert!(text.contains("tcp/8080: allowed") && text.contains("sessionAffinity"), "{text}");
    assert!(!text.contains("outside"), "{text}");
    let (code, text) = explain(&address, "81");
    assert!(code != Some(0) && text.contains("service default/web does not forward tcp/81"), "{text}");
    let other = pods.iter().find(|pod| pod.node != pods[0].node).unwrap();
    let deny = format!(
        "apiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {{name: deny-one}}\nspec:\n  selector: \
         all()\n  types: [Egress]\n  egress:\n  - {{action: Deny, destination: {{nets: [{}/32]}}}}\n  - {{action: Allow}}\n",
        other.addresses[0]
    );
    cluster.ctl_apply(&deny);
    let (code, text) = explain(&address, "80");
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains(&format!("The following is about default/{}", other.name)), "{text}");
    assert!(text.contains("tcp/8080: allowed") && text.contains("tcp/8080: denied"), "{text}");
    cluster.must(&["ctl", "delete", "gnp", "deny-one"]);
}

/// The image contains calicoctl, which finds the cluster by its service account.
fn calicoctl_of_the_image_works(cluster: &KubernetesLab) {
    cluster.apply(CALICOCTL);
    let get = |path: &str| cluster.kubectl(&["get", "pod", "calicoctl", "-n", "kube-system", "-o", path]);
    let logs = || cluster.kubectl(&["logs", "-n", "kube-system", "calicoctl"]);
    eventually_showing(
        "calicoctl has ended",
        || get("jsonpath={.status.phase}") == "Succeeded",
        || format!("{}\n{}", logs(), cluster.picture()),
    );
    assert!(logs().contains("node1") && logs().contains("node2"), "{}", logs());
    cluster.must_kubectl(&["delete", "pod", "-n", "kube-system", "calicoctl", "--now"]);
}

/// `lab image load` makes the images of an archive available on every node.
fn images_are_loaded(cluster: &KubernetesLab) {
    let archive = cluster.file("app.tar");
    cluster.must(&["image", "-o", &archive, "--tag", "docker.io/library/loaded:7"]);
    cluster.must(&["image", "load", &archive]);
    for node in ["node1", "node2"] {
        let listed = cluster.on(node, &["ctr", "--namespace", "k8s.io", "images", "list", "-q"]);
        assert!(listed.contains("docker.io/library/loaded:7"), "{node}: {listed}");
    }
    let refused = cluster.run(&["image", "load", "/nonexistent/app.tar"]);
    assert!(
        !refused.status.success()
            && String::from_utf8_lossy(&refused.stderr).contains("/nonexistent/app.tar")
    );
}

/// The deletion of pods is not logged as a loss of their endpoints.
fn deleted_pods_are_no_losses(cluster: &KubernetesLab) {
    cluster.must_kubectl(&["delete", "service", "web"]);
    cluster.must_kubectl(&["delete", "deployment", "web"]);
    eventually("the pods are gone", || cluster.pods_of("default", PODS).is_empty());
    let log = cluster.must(&["logs"]);
    assert!(log.contains("CNI request done"), "{log}");
    assert!(!log.contains("lost the endpoint") && !log.contains("has lost endpoints"), "{log}");
}
