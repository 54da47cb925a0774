//! Marks of connections in Istio's ambient mesh, with real packets.

use crate::namespace::{OpenNetns, TestNamespace, eventually, node_pair, plan, pod, workload};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;
use tortie_dataplane::DataplaneHandle;
use tortie_plan::{
    AMBIENT_WORKLOADS_SET, AddressSet, DataplaneSettings, NodePlan, PlanUpdate, SetId, SetKind, SetMember,
};
use tortie_testkit::bind_when_free;

const CLIENT: [&str; 2] = ["10.65.0.2", "fd80:65::2"];
const SERVER: [&str; 2] = ["10.65.0.3", "fd80:65::3"];
const STRANGER: [&str; 2] = ["10.65.0.4", "fd80:65::4"];
/// A workload of the mesh on another node.
const REMOTE: [&str; 2] = ["192.168.77.2", "fd77::2"];
const GATEWAY: [&str; 2] = ["192.168.77.1", "fd77::1"];
/// Values that packets may carry on arrival.
const DSCP_VALUES: [u8; 3] = [0, 20, 23];

fn member(address: &str) -> SetMember {
    SetMember::Net(ipnet::IpNet::from(address.parse::<std::net::IpAddr>().unwrap()))
}

fn mesh_plan() -> NodePlan {
    let one = ("client", workload("cali1", &CLIENT));
    let mut plan =
        plan(&[one, ("server", workload("cali2", &SERVER)), ("stranger", workload("cali3", &STRANGER))], &[]);
    let members = [CLIENT, SERVER, REMOTE].into_iter().flatten().map(member).collect();
    let set = AddressSet { kind: SetKind::Nets, members };
    plan.sets.insert(SetId::new(AMBIENT_WORKLOADS_SET), set);
    plan
}

fn marking(ambient_dscp: Option<u8>) -> DataplaneSettings {
    let mut settings = DataplaneSettings::default();
    settings.policy.ambient_dscp = ambient_dscp;
    settings
}

/// Returns the DSCP of the first packets of a TCP connection, and of a datagram, on arrival.
async fn receive_marks(from: &TestNamespace, to: &TestNamespace, address: &str) -> [u8; 2] {
    let any = SocketAddr::new(address.parse().unwrap(), 0);
    let listener = to.open().run(move || bind_when_free(|| TcpListener::bind(any)).unwrap()).unwrap();
    let target = listener.local_addr().unwrap();
    let receiver = to.open().run(move || bind_when_free(|| UdpSocket::bind(any)).unwrap()).unwrap();
    receiver.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let datagrams = receiver.local_addr().unwrap();
    let unspecified = if any.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
    let sender = from.open().run(move || UdpSocket::bind(unspecified).unwrap()).unwrap();
    to.exec("nft add table inet seen");
    to.exec("nft add chain inet seen in { type filter hook input priority 0 ; }");
    let family = if any.is_ipv6() { "ip6" } else { "ip" };
    for dscp in DSCP_VALUES {
        for first in [
            format!("tcp dport {} tcp flags & (syn | ack) == syn", target.port()),
            format!("udp dport {}", datagrams.port()),
        ] {
            to.exec(&format!(
                "nft add rule inet seen in {first} {family} dscp {dscp} counter comment v{dscp}"
            ));
        }
    }
    eventually("a connection is established", || {
        let connect = move || TcpStream::connect_timeout(&target, Duration::from_secs(2));
        from.open().run(connect).unwrap().is_ok()
    })
    .await;
    eventually("a datagram arrives", || {
        let _ = sender.send_to(b"marked?", datagrams);
        receiver.recv_from(&mut [0; 64]).is_ok()
    })
    .await;
    let listing = to.exec("nft list table inet seen");
    to.exec("nft delete table inet seen");
    ["tcp dport", "udp dport"].map(|kind| {
        let counted = listing.lines().filter(|line| line.contains(kind) && !line.contains("packets 0 "));
        let counted: Vec<&str> = counted.collect();
        assert_eq!(counted.len(), 1, "{listing}");
        DSCP_VALUES.into_iter().find(|dscp| counted[0].contains(&format!("\"v{dscp}\""))).unwrap()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn new_connections_inside_the_mesh_are_marked() {
    let (node, there) = node_pair();
    for (net, gateway) in ["10.65.0.0/16", "fd80:65::/48"].into_iter().zip(GATEWAY) {
        there.ip(&format!("route add {net} via {gateway}"));
    }
    let client = pod(&node, "cali1", &CLIENT).await;
    let server = pod(&node, "cali2", &SERVER).await;
    let stranger = pod(&node, "cali3", &STRANGER).await;
    let (dataplane, _) = DataplaneHandle::start(node.open(), marking(Some(23))).await.unwrap();
    assert_eq!(dataplane.replace(mesh_plan()).await.unwrap().failures, []);
    let table = || node.exec(&["nft", "list", "table", "inet", "tortie"]);
    for family in [0, 1] {
        let (inside, outside) = (SERVER[family], STRANGER[family]);
        assert_eq!(receive_marks(&client, &server, inside).await, [23, 0], "{}", table());
        assert_eq!(receive_marks(&there, &server, inside).await, [23, 0], "from another node\n{}", table());
        assert_eq!(receive_marks(&stranger, &server, inside).await, [0, 0], "from outside the mesh");
        assert_eq!(receive_marks(&client, &stranger, outside).await, [0, 0], "to outside the mesh");
        // The node of the destination marks.
        assert_eq!(receive_marks(&client, &there, REMOTE[family]).await, [0, 0], "to another node");
    }

    // Settings and members take effect without a restart.
    assert_eq!(dataplane.configure(marking(Some(20))).await.unwrap().failures, []);
    assert_eq!(receive_marks(&client, &server, SERVER[0]).await, [20, 0], "{}", table());
    let leaves = PlanUpdate::Members {
        set: SetId::new(AMBIENT_WORKLOADS_SET),
        added: STRANGER.into_iter().map(member).collect(),
        removed: CLIENT.into_iter().map(member).collect(),
    };
    assert_eq!(dataplane.apply(vec![leaves]).await.unwrap().failures, []);
    assert_eq!(receive_marks(&client, &server, SERVER[0]).await, [0, 0], "it has left the mesh");
    assert_eq!(receive_marks(&stranger, &server, SERVER[1]).await, [20, 0], "it has joined the mesh");
    assert_eq!(dataplane.configure(marking(None)).await.unwrap().failures, []);
    assert_eq!(receive_marks(&stranger, &server, SERVER[0]).await, [0, 0], "{}", table());
    assert!(!table().contains("chain marking"), "{}", table());
    // The mode is enabled before its set is in the plan.
    let removed = PlanUpdate::Set(SetId::new(AMBIENT_WORKLOADS_SET), None);
    assert_eq!(dataplane.apply(vec![removed]).await.unwrap().failures, []);
    assert_eq!(dataplane.configure(marking(Some(20))).await.unwrap().failures, []);
    assert_eq!(receive_marks(&client, &server, SERVER[0]).await, [0, 0], "{}", table());
}
