//! HTTP policy for a real Deployment: `deploy/l7` is applied as a user does, kubelet mounts the volume of the CSI driver, and
//! Envoy asks `tortie l7 serve` in the pod.

use crate::cluster::KubernetesLab;
use crate::pods::ListedPod;
use crate::traffic::TransportPort::Tcp;
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tortie_testkit::{envoy_program, eventually_showing};

const NAMESPACE: &str = "http-policy";
const ENVOY_IMAGE: &str = "docker.io/envoyproxy/envoy:v1.40.0";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
const CSI_DRIVERS: &str = "k8s-app=csi-node-driver";

/// Clients with their service accounts. `stranger` has none that a rule names.
const CLIENTS: [&str; 3] = ["frontend", "auditor", "stranger"];

fn manifest(name: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/l7").join(name);
    fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn client_pods() -> String {
    let client = |name: &&str| {
        format!(
            "---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: {name}, namespace: {NAMESPACE}}}\n---\n\
             apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {NAMESPACE}, labels: {{app: client}}}}\nspec:\n  \
             serviceAccountName: {name}\n  nodeName: node2\n  terminationGracePeriodSeconds: 1\n  containers:\n  \
             - {{name: c, image: \"docker.io/library/busybox:1\", command: [sleep, \"86400\"]}}\n"
        )
    };
    CLIENTS.iter().map(client).collect()
}

/// The objects of `deploy/l7` in a cluster with two nodes.
struct HttpPolicyCluster<'a> {
    cluster: &'a KubernetesLab,
}

pub fn decides_about_requests_to_a_deployment(cluster: &KubernetesLab) {
    import_envoy(cluster);
    let test = HttpPolicyCluster { cluster };
    for name in ["10-csi.yaml", "20-settings.yaml", "sidecar.yaml"] {
        cluster.apply(&manifest(name));
    }
    cluster.apply(&client_pods());
    let web = test.wait_for_web();
    for client in CLIENTS {
        test.wait_for("a client runs", || test.pod(client).is_some_and(|pod| pod.is_ready()));
    }
    test.requests_are_decided(&web);
    test.the_proxy_cannot_be_bypassed(&web);
    test.the_setting_can_change(&web);
    test.the_driver_survives_a_kill(&web);
    test.nothing_is_left_of_removed_pods();
}

impl HttpPolicyCluster<'_> {
    fn wait_for(&self, what: &str, condition: impl Fn() -> bool) {
        eventually_showing(what, condition, || self.picture());
    }

    fn picture(&self) -> String {
        let describe = ["describe", "pods", "-n", NAMESPACE];
        let logs = |label: &str, namespace: &str| {
            self.cluster
                .run_kubectl(&["logs", "-n", namespace, "-l", label, "--all-containers", "--tail=40"])
                .1
        };
        let (_, described) = self.cluster.run_kubectl(&describe);
        let texts =
            [self.cluster.picture(), described, logs(CSI_DRIVERS, "kube-system"), logs("app=web", NAMESPACE)];
        texts.join("\n")
    }

    /// Returns the ready pod of the Deployment.
    fn wait_for_web(&self) -> ListedPod {
        let pods = || self.cluster.pods_of(NAMESPACE, "app=web");
        let is_ready = || matches!(pods().as_slice(), [pod] if pod.is_ready());
        self.wait_for("the pod with its sidecars is ready", is_ready);
        pods().remove(0)
    }

    fn pod(&self, name: &str) -> Option<ListedPod> {
        self.cluster.pods_of(NAMESPACE, "app=client").into_iter().find(|pod| pod.name == name)
    }

    /// Sends a request from a client and returns the status, or `None` if there is no connection.
    fn status(&self, client: &str, address: IpAddr, method: &str, path: &str) -> Option<u16> {
        let netns = self.pod(client).unwrap().netns();
        netns.run(|| request(SocketAddr::new(address, 80), method, path)).unwrap()
    }

    fn requests_are_decided(&self, web: &ListedPod) {
        for address in &web.addresses {
            // Sets of service accounts may follow the pods a moment later.
            let is_allowed = || self.status("frontend", *address, "GET", "/allowed") == Some(200);
            self.wait_for("the service account may send GET /allowed", is_allowed);
            let is_checked = || self.status("auditor", *address, "HEAD", "/denied") == Some(200);
            self.wait_for("the other service account may send HEAD", is_checked);
            for (client, method, path) in [
                ("frontend", "POST", "/allowed"),
                ("frontend", "GET", "/denied"),
                ("frontend", "GET", "/allowed/../denied"),
                ("frontend", "GET", "/allowed%2f..%2fdenied"),
                ("frontend", "HEAD", "/allowed"),
                ("auditor", "GET", "/allowed"),
            ] {
                let status = self.status(client, *address, method, path);
                assert_eq!(status, Some(403), "{client} {method} {path}\n{}", self.picture());
            }
            // No rule names the service account: the kernel admits no connection.
            assert_eq!(self.status("stranger", *address, "GET", "/allowed"), None, "{}", self.picture());
        }
    }

    /// A server that listens on all addresses of the pod is not reachable, and without its proxy the pod is closed.
    fn the_proxy_cannot_be_bypassed(&self, web: &ListedPod) {
        let exposed = "httpd -p 8081 -h /www";
        let exec = ["exec", "-n", NAMESPACE, &web.name, "-c", "web", "--", "sh", "-c", exposed];
        self.cluster.must_kubectl(&exec);
        let frontend = self.pod("frontend").unwrap().netns();
        for address in &web.addresses {
            assert!(Tcp(8081).answers(&web.netns(), *address), "the server listens");
            assert!(!Tcp(8081).answers(&frontend, *address), "port 8081 of the pod is open");
        }
        let pid = process_in_pod(web, "l7\0serve");
        assert!(signal(pid, "STOP"), "the server runs");
        // The node counts a client as vanished that does not answer its pings; then the kernel closes the port.
        let is_closed = || !Tcp(80).answers(&frontend, web.addresses[0]);
        self.wait_for("the kernel admits nothing without the server", is_closed);
        // Ignore the result: on a slow machine kubelet may have restarted the container.
        signal(pid, "CONT");
        let is_allowed = || self.status("frontend", web.addresses[0], "GET", "/allowed") == Some(200);
        self.wait_for("the server is back", is_allowed);
        assert_eq!(self.status("frontend", web.addresses[0], "POST", "/allowed"), Some(403));
    }

    /// Without the setting the node serves no policy, and with it again, the volume of the running pod leads to the socket.
    fn the_setting_can_change(&self, web: &ListedPod) {
        let patch = "{\"spec\":{\"policySyncPathPrefix\":\"\"}}";
        self.cluster.must_kubectl(&["patch", "felixconfiguration", "default", "--type=merge", "-p", patch]);
        let frontend = self.pod("frontend").unwrap().netns();
        let is_closed = || !Tcp(80).answers(&frontend, web.addresses[0]);
        self.wait_for("the kernel admits nothing without the setting", is_closed);
        self.cluster.apply(&manifest("20-settings.yaml"));
        let is_allowed = || self.status("frontend", web.addresses[0], "GET", "/allowed") == Some(200);
        self.wait_for("the running pod receives policy again", is_allowed);
    }

    /// The driver is killed; its volumes stay, and kubelet uses the next one for new pods.
    fn the_driver_survives_a_kill(&self, web: &ListedPod) {
        let driver = || {
            let drivers = self.cluster.pods_of("kube-system", CSI_DRIVERS);
            drivers.into_iter().find(|pod| pod.node == web.node).unwrap()
        };
        let before = process_in_pod(&driver(), "tortie\0csi");
        assert!(signal(before, "KILL"), "the driver runs");
        assert_eq!(self.status("frontend", web.addresses[0], "GET", "/allowed"), Some(200));
        assert_eq!(self.status("frontend", web.addresses[0], "POST", "/allowed"), Some(403));
        self.cluster.must_kubectl(&[
            "delete",
            "pod",
            "-n",
            NAMESPACE,
            &web.name,
            "--wait=true",
            "--timeout=120s",
        ]);
        let next = self.wait_for_web();
        assert_ne!(next.uid, web.uid);
        let is_allowed = || self.status("frontend", next.addresses[0], "GET", "/allowed") == Some(200);
        self.wait_for("a new pod has a volume", is_allowed);
        assert_eq!(self.status("frontend", next.addresses[0], "POST", "/allowed"), Some(403));
    }

    fn nothing_is_left_of_removed_pods(&self) {
        self.cluster.delete(&client_pods());
        self.cluster.delete(&manifest("sidecar.yaml"));
        for node in ["node1", "node2"] {
            let left = || {
                let files = "find /run/nodeagent/creds /run/nodeagent/mount -mindepth 1 2>/dev/null; grep kubernetes.io~csi /proc/self/mountinfo";
                self.cluster.on(node, &["sh", "-c", &format!("{files}; true")])
            };
            eventually_showing("no credentials, socket or mount is left", || left().is_empty(), left);
        }
    }
}

/// Makes an image of Envoy and imports it on the nodes, as nothing is downloaded.
fn import_envoy(cluster: &KubernetesLab) {
    let file = cluster.file("envoy.tar");
    let program = envoy_program().display().to_string();
    cluster.lab(&["image", "--output", &file, "--tag", ENVOY_IMAGE, "--program", &program]);
    cluster.lab(&["image", "load", &file]);
}

/// Sends a request exactly as given and returns the status of the response.
fn request(address: SocketAddr, method: &str, path: &str) -> Option<u16> {
    let mut stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).ok()?;
    stream.set_read_timeout(Some(RESPONSE_TIMEOUT)).ok()?;
    let request =
        format!("{method} {path} HTTP/1.1\r\nhost: web\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut response = String::new();
    // The connection may be reset after the response.
    let _ = stream.read_to_string(&mut response);
    response.split(' ').nth(1)?.parse().ok()
}

/// Returns the process of a pod whose command line contains the text.
fn process_in_pod(pod: &ListedPod, text: &str) -> u32 {
    let group = format!("/pod{}/", pod.uid);
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let mut found = processes.filter(|process| {
        let read = |name: &str| fs::read(process.join(name)).unwrap_or_default();
        let contains = |name: &str, text: &str| String::from_utf8_lossy(&read(name)).contains(text);
        contains("cgroup", &group) && contains("cmdline", text)
    });
    let process = found.next().unwrap_or_else(|| panic!("{text:?} does not run in {pod:?}"));
    process.file_name().unwrap().to_str().unwrap().parse().unwrap()
}

/// Returns whether the process could be signalled.
fn signal(process: u32, name: &str) -> bool {
    Command::new("kill").args([format!("-{name}"), process.to_string()]).status().unwrap().success()
}
