//! Established flows after a policy change: they continue, or are cut if `cut_denied_flows` is set.

use crate::namespace::{OpenNetns, TestNamespace, eventually};
use crate::plans::{change, guarded, ingress, open_plan, two_pods, udp};
use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;
use tortie_dataplane::{DataplaneHandle, ReportReceiver};
use tortie_plan::{
    AddressSet, DataplaneSettings, EndpointToHostAction, NodePlan, PlanUpdate, PlannedRule, RuleAction,
    SetId, SetKind, SetMember,
};
use tortie_testkit::bind_when_free;

/// Time to wait for a packet that should not arrive.
const NO_PACKET_TIMEOUT: Duration = Duration::from_millis(500);
const PACKET_TIMEOUT: Duration = Duration::from_secs(20);

/// Both ends of a TCP or UDP flow.
struct TestFlow {
    client: FlowEnd,
    server: FlowEnd,
}

enum FlowEnd {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl FlowEnd {
    fn write(&mut self) {
        match self {
            FlowEnd::Tcp(stream) => stream.write_all(&[7]).unwrap(),
            FlowEnd::Udp(socket) => drop(socket.send(&[7]).unwrap()),
        }
    }

    fn hears(&mut self, patience: Duration) -> bool {
        let mut byte = [0];
        let heard = match self {
            FlowEnd::Tcp(stream) => {
                stream.set_read_timeout(Some(patience)).unwrap();
                stream.read(&mut byte)
            }
            FlowEnd::Udp(socket) => {
                socket.set_read_timeout(Some(patience)).unwrap();
                socket.recv(&mut byte)
            }
        };
        match heard {
            Ok(count) => count == 1,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => false,
            Err(error) => panic!("{error}"),
        }
    }
}

impl TestFlow {
    fn tcp(from: &TestNamespace, to: &TestNamespace, address: &str, port: u16) -> TestFlow {
        let address = SocketAddr::new(address.parse().unwrap(), port);
        let listener = to.open().run(|| bind_when_free(|| TcpListener::bind(address)).unwrap()).unwrap();
        let client =
            from.open().run(|| TcpStream::connect_timeout(&address, PACKET_TIMEOUT).unwrap()).unwrap();
        let server = listener.accept().unwrap().0;
        let flow = TestFlow { client: FlowEnd::Tcp(client), server: FlowEnd::Tcp(server) };
        flow.that_works()
    }

    fn udp(from: &TestNamespace, to: &TestNamespace, address: &str, port: u16) -> TestFlow {
        let address = SocketAddr::new(address.parse().unwrap(), port);
        let any: SocketAddr = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().unwrap();
        let server = to.open().run(|| bind_when_free(|| UdpSocket::bind(address)).unwrap()).unwrap();
        let client = from.open().run(|| UdpSocket::bind(any).unwrap()).unwrap();
        client.connect(address).unwrap();
        client.send(&[1]).unwrap();
        server.set_read_timeout(Some(PACKET_TIMEOUT)).unwrap();
        let (_, peer) = server.recv_from(&mut [0]).unwrap();
        server.connect(peer).unwrap();
        let flow = TestFlow { client: FlowEnd::Udp(client), server: FlowEnd::Udp(server) };
        flow.that_works()
    }

    fn that_works(mut self) -> TestFlow {
        assert!(self.lives(), "it works at first");
        self
    }

    /// Sends one byte in each direction; returns whether both arrive.
    fn lives(&mut self) -> bool {
        self.client.write();
        if !self.server.hears(PACKET_TIMEOUT) {
            return false;
        }
        self.server.write();
        self.client.hears(PACKET_TIMEOUT)
    }

    /// Returns whether a byte that the client sends is lost.
    fn is_dead(&mut self) -> bool {
        self.client.write();
        !self.server.hears(NO_PACKET_TIMEOUT)
    }
}

async fn start(node: &TestNamespace, cut: bool) -> (DataplaneHandle, ReportReceiver) {
    let mut settings = DataplaneSettings::default();
    settings.policy.endpoint_to_host = EndpointToHostAction::Accept;
    settings.policy.cut_denied_flows = cut;
    DataplaneHandle::start(node.open(), settings).await.unwrap()
}

fn tcp(action: RuleAction, port: u16) -> PlannedRule {
    PlannedRule { protocol: Some(6), ..udp(action, port) }
}

/// Returns a plan in which pod two accepts all ingress.
fn permissive() -> NodePlan {
    guarded(open_plan(), &[("door", ingress(vec![PlannedRule::new(RuleAction::Allow)]))])
}

/// Restricts ingress to port 1000, and port 4000 for members of the set.
fn narrow() -> PlanUpdate {
    let mut members = tcp(RuleAction::Allow, 4000);
    members.source.sets = vec![friends()];
    change("door", ingress(vec![tcp(RuleAction::Allow, 1000), udp(RuleAction::Allow, 1000), members]))
}

fn friends() -> SetId {
    SetId::new("s:friends")
}

fn both() -> Vec<SetMember> {
    ["10.65.0.2/32", "fd80:65::2/128"].iter().map(|net| SetMember::Net(net.parse().unwrap())).collect()
}

const SECOND_POD_ADDRESSES: [&str; 2] = ["10.65.0.3", "fd80:65::3"];

#[tokio::test(flavor = "multi_thread")]
async fn only_denied_established_flows_are_cut() {
    let (node, one, two) = two_pods().await;
    for own in ["192.0.2.1/32", "2001:db8::1/128"] {
        node.ip(&format!("addr add {own} dev lo"));
    }
    let (dataplane, _reports) = start(&node, true).await;
    let mut plan = permissive();
    plan.sets.insert(friends(), AddressSet { kind: SetKind::Nets, members: BTreeSet::from_iter(both()) });
    dataplane.replace(plan).await.unwrap();
    let (mut denied, mut denied_udp, mut allowed, mut of_friends) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for address in SECOND_POD_ADDRESSES {
        denied.push(TestFlow::tcp(&one, &two, address, 2000));
        denied_udp.push(TestFlow::udp(&one, &two, address, 2000));
        allowed.push(TestFlow::tcp(&one, &two, address, 1000));
        allowed.push(TestFlow::udp(&one, &two, address, 1000));
        // Opened by pod two: its ingress packets are replies.
        allowed.push(TestFlow::tcp(&two, &one, &address.replace('3', "2"), 3000));
        allowed.push(TestFlow::udp(&two, &one, &address.replace('3', "2"), 3000));
        // Opened by the host, which may always reach its workloads.
        allowed.push(TestFlow::tcp(&node, &two, address, 5000));
        of_friends.push(TestFlow::tcp(&one, &two, address, 4000));
    }
    assert_eq!(dataplane.apply(vec![narrow()]).await.unwrap().failures, []);
    for flow in denied.iter_mut().chain(&mut denied_udp) {
        eventually("the flow is cut", || flow.is_dead()).await;
    }
    for flow in &mut denied {
        // Nor does traffic from the server re-establish the flow.
        flow.server.write();
        assert!(!flow.client.hears(NO_PACKET_TIMEOUT) && flow.is_dead());
    }
    for flow in allowed.iter_mut().chain(&mut of_friends) {
        assert!(flow.lives());
    }

    let nobody = PlanUpdate::Members { set: friends(), added: Vec::new(), removed: both() };
    assert_eq!(dataplane.apply(vec![nobody]).await.unwrap().failures, []);
    for flow in &mut of_friends {
        eventually("the flow of one that is no member any more is cut", || flow.is_dead()).await;
    }
    assert!(allowed.iter_mut().all(TestFlow::lives));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_setting_established_flows_live_on() {
    let (node, one, two) = two_pods().await;
    let (dataplane, _reports) = start(&node, false).await;
    dataplane.replace(permissive()).await.unwrap();
    let mut flows = Vec::new();
    for address in SECOND_POD_ADDRESSES {
        flows.push(TestFlow::tcp(&one, &two, address, 2000));
        flows.push(TestFlow::udp(&one, &two, address, 2000));
    }
    assert_eq!(dataplane.apply(vec![narrow()]).await.unwrap().failures, []);
    // Longer than cutting takes when it is enabled.
    for _ in 0..20 {
        assert!(flows.iter_mut().all(TestFlow::lives));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    // A policy change made while the dataplane was stopped is enforced on existing flows after the restart.
    dataplane.stop().await;
    let (dataplane, _reports) = start(&node, true).await;
    let mut plan = permissive();
    plan.apply(narrow());
    dataplane.replace(plan).await.unwrap();
    for flow in &mut flows {
        eventually("the flow is cut", || flow.is_dead()).await;
    }
}
