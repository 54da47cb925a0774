//! Traffic to a NodePort is judged as in Calico: by its source when it is forwarded. On the node of the pod this is
//! the client, even if the source is masqueraded afterwards; if another node has forwarded it, it is that node,
//! unless the service has externalTrafficPolicy Local.

use crate::cluster::KubernetesLab;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;
use tortie_dataplane::Netns;
use tortie_testkit::eventually_showing;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const NODE_PORT: u16 = 30080;
/// The router of the lab's network, which is outside the cluster.
const CLIENT_ADDRESS: &str = "10.10.1.254";
/// The node of the pod, and a node that forwards to it.
const NODE_ADDRESSES: [&str; 2] = ["10.10.1.1", "10.10.1.2"];

const NODE_PORT_SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: fixed, namespace: demo}
spec:
  type: NodePort
  externalTrafficPolicy: Cluster
  selector: {app: fixed}
  ports: [{port: 80, targetPort: 8080, nodePort: 30080}]
";

fn only_from(address: &str) -> String {
    format!(
        "{{apiVersion: projectcalico.org/v3, kind: NetworkPolicy, metadata: {{name: ports, namespace: demo}}, \
         spec: {{selector: app == 'fixed', types: [Ingress], ingress: [{{action: Allow, protocol: TCP, \
         source: {{nets: [{address}/32]}}, destination: {{ports: [8080]}}}}]}}}}"
    )
}

/// Checks NodePorts of the pod `fixed`, which is on node1 and serves port 8080.
pub fn are_judged_by_who_forwards(cluster: &KubernetesLab) {
    let outside = Netns::open(format!("/run/netns/{}", cluster.fabric())).unwrap();
    let expect = |what: &str, wanted: [bool; 2]| {
        for (node, wanted) in NODE_ADDRESSES.into_iter().zip(wanted) {
            let to = SocketAddr::new(node.parse::<IpAddr>().unwrap(), NODE_PORT);
            let answers =
                || outside.run(|| TcpStream::connect_timeout(&to, CONNECT_TIMEOUT).is_ok()).unwrap();
            let what = format!("{what}: {to} {}", if wanted { "answers" } else { "is silent" });
            eventually_showing(&what, || answers() == wanted, || cluster.picture());
        }
    };
    let says = |from: &str| cluster.explains(from, "demo/fixed", "tcp/8080");
    cluster.apply(NODE_PORT_SERVICE);
    expect("no policy", [true, true]);
    cluster.ctl_apply(&only_from(CLIENT_ADDRESS));
    expect("only the client", [true, false]);
    assert_eq!((says(CLIENT_ADDRESS), says(NODE_ADDRESSES[1])), (true, false));
    cluster.ctl_apply(&only_from(NODE_ADDRESSES[1]));
    expect("only the other node", [false, true]);
    assert_eq!((says(CLIENT_ADDRESS), says(NODE_ADDRESSES[1])), (false, true));
    // With externalTrafficPolicy Local the client's address is kept, and only the node of the pod answers.
    cluster.apply(&NODE_PORT_SERVICE.replace("Policy: Cluster", "Policy: Local"));
    expect("local, only the other node", [false, false]);
    cluster.ctl_apply(&only_from(CLIENT_ADDRESS));
    expect("local, only the client", [true, false]);
    cluster.ctl(&["delete", "networkpolicy", "ports", "-n", "demo"]);
    expect("local, no policy", [true, false]);
    cluster.delete(NODE_PORT_SERVICE);
}
