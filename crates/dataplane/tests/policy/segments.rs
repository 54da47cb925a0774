//! TCP MSS clamping to the route's MTU when it is configured, and ICMP "packet too big" for packets to a workload.

use crate::namespace::{OpenNetns, TestNamespace, eventually, node_pair, plan, pod, request, workload};
use crate::plans::POD_ONE_ADDRESSES;
use nix::sys::socket::{getsockopt, sockopt};
use std::net::{TcpListener, TcpStream};
use tortie_dataplane::{DataplaneHandle, pod as attachment};
use tortie_plan::DataplaneSettings;
use tortie_testkit::bind_when_free;

/// Returns the maximum segment size that the server may send on a new connection.
fn segment(pod: &TestNamespace, there: &TestNamespace, address: &str) -> u32 {
    let bind = address.to_owned();
    let listener = there.open().run(move || bind_when_free(|| TcpListener::bind(&bind)).unwrap()).unwrap();
    let to = listener.local_addr().unwrap();
    let _client = pod.open().run(move || TcpStream::connect(to).unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    getsockopt(&server, sockopt::TcpMaxSeg).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn mss_is_clamped_if_the_settings_request_it() {
    let (node, there) = node_pair();
    let pod = pod(&node, "cali1", &POD_ONE_ADDRESSES).await;
    there.ip("addr add 198.51.100.1/32 dev lo");
    there.ip("addr add 2001:db8::1/128 dev lo");
    there.ip("route add 10.65.0.0/16 via 192.168.77.1");
    there.ip("route add fd80:65::/32 via fd77::1");
    node.ip("route add 198.51.100.1/32 via 192.168.77.2 mtu 1300");
    node.ip("route add 2001:db8::1/128 via fd77::2 mtu 1300");
    let (dataplane, _reports) =
        DataplaneHandle::start(node.open(), DataplaneSettings::default()).await.unwrap();
    dataplane.replace(plan(&[("one", workload("cali1", &POD_ONE_ADDRESSES))], &[])).await.unwrap();
    // IP and TCP headers plus the 12-byte timestamp option.
    let fits = |header: u32| 1300 - header - 12;
    for address in ["198.51.100.1:0", "[2001:db8::1]:0"] {
        assert!(segment(&pod, &there, address) > fits(40), "nobody interferes unless asked to: {address}");
    }
    let settings = DataplaneSettings { clamp_mss: true, ..DataplaneSettings::default() };
    assert_eq!(dataplane.configure(settings).await.unwrap().failures, []);
    assert_eq!(segment(&pod, &there, "198.51.100.1:0"), fits(40));
    assert_eq!(segment(&pod, &there, "[2001:db8::1]:0"), fits(60));
    assert_eq!(dataplane.configure(DataplaneSettings::default()).await.unwrap().failures, []);
    assert!(segment(&pod, &there, "198.51.100.1:0") > fits(40), "and no more when it is taken back");
}

#[tokio::test(flavor = "multi_thread")]
async fn senders_learn_the_path_mtu_to_workloads() {
    let (node, there) = node_pair();
    let pod = TestNamespace::new("pod");
    let wanted = attachment::AttachRequest { mtu: Some(1400), ..request(&pod, "cali1", &POD_ONE_ADDRESSES) };
    attachment::attach(&node.open(), &wanted).await.unwrap();
    there.ip("route add 10.65.0.0/16 via 192.168.77.1");
    there.ip("route add fd80:65::/32 via fd77::1");
    let (dataplane, _reports) =
        DataplaneHandle::start(node.open(), DataplaneSettings::default()).await.unwrap();
    dataplane.replace(plan(&[("one", workload("cali1", &POD_ONE_ADDRESSES))], &[])).await.unwrap();
    for (address, header) in POD_ONE_ADDRESSES.into_iter().zip([28, 48]) {
        let ping = |size: u32| {
            let size = size.to_string();
            there.try_exec(&["ping", "-n", "-c", "1", "-W", "2", "-M", "do", "-s", &size, address])
        };
        eventually("what fits arrives", || ping(1400 - header).status.success()).await;
        // The node answers the first packet with "packet too big"; later ones are rejected locally.
        eventually("what does not fit is told of", || {
            let output = ping(1401 - header);
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said).into_owned();
            assert!(!output.status.success(), "{said}");
            said.contains("1400")
        })
        .await;
    }
}
