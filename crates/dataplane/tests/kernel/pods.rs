//! Attaching, detaching and checking pods.

use crate::namespace::{OpenNetns, TestNamespace, id, node_pair, plan, pod, request, start, workload};
use tortie_dataplane::DataplaneError;
use tortie_dataplane::pod::{AttachRequest, attach, check, detach};
use tortie_plan::PlanUpdate;

const POD_ADDRESSES: [&str; 2] = ["10.65.0.2", "fd80:65::2"];

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_attached_like_calico_and_detached_completely() {
    let (node, pod) = (TestNamespace::new("node"), TestNamespace::new("node"));
    let host = node.open();
    let wanted = AttachRequest {
        mtu: Some(1400),
        mac: Some([0x02, 0, 0, 0, 0, 7]),
        queues: 2,
        ..request(&pod, "cali1", &POD_ADDRESSES)
    };
    let attached = attach(&host, &wanted).await.unwrap();
    assert_eq!((attached.mac, attached.mtu), ([0x02, 0, 0, 0, 0, 7], 1400));

    let inside = &pod.json("addr show dev eth0")[0];
    assert_eq!(inside["address"], "02:00:00:00:00:07");
    assert_eq!(inside["mtu"], 1400);
    assert_eq!(inside["num_tx_queues"], 2);
    let found: Vec<String> = inside["addr_info"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|info| info["scope"] == "global")
        .map(|info| format!("{}/{}", info["local"].as_str().unwrap(), info["prefixlen"]))
        .collect();
    assert_eq!(found, ["10.65.0.2/32", "fd80:65::2/128"]);
    assert_eq!(pod.routes("169.254.1.1/32"), ["unicast 169.254.1.1 dev eth0 proto boot scope link"]);
    assert_eq!(pod.routes("0.0.0.0/0"), ["unicast default via 169.254.1.1 dev eth0 proto boot scope global"]);
    let v6 = &pod.json("-6 route show default")[0];
    assert_eq!(v6["gateway"], "fe80::ecee:eeff:feee:eeee");
    assert_eq!(pod.sysctl("net/ipv4/ip_forward"), "0");
    assert_eq!(pod.sysctl("net/ipv6/conf/all/forwarding"), "0");

    let outside = &node.json("link show dev cali1")[0];
    assert_eq!(outside["address"], "ee:ee:ee:ee:ee:ee");
    assert_eq!(outside["mtu"], 1400);
    for (key, value) in [
        ("ipv4/conf/cali1/proxy_arp", "1"),
        ("ipv4/conf/cali1/forwarding", "1"),
        ("ipv4/conf/cali1/route_localnet", "0"),
        ("ipv4/neigh/cali1/proxy_delay", "0"),
        ("ipv6/conf/cali1/proxy_ndp", "1"),
        ("ipv6/conf/cali1/forwarding", "1"),
        ("ipv6/conf/cali1/accept_ra", "0"),
        ("ipv6/conf/cali1/accept_dad", "0"),
    ] {
        assert_eq!(node.sysctl(&format!("net/{key}")), value, "{key}");
    }

    detach(&host, Some(pod.path().as_ref()), "eth0", "cali1").await.unwrap();
    assert!(!pod.has_link("eth0") && !node.has_link("cali1"));
    detach(&host, Some(pod.path().as_ref()), "eth0", "cali1").await.unwrap();
    detach(&host, None, "eth0", None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_one_host_reach_each_other() {
    let (node, _other) = node_pair();
    let (dataplane, _reports) = start(&node).await;
    let first = pod(&node, "cali1", &POD_ADDRESSES).await;
    let second = pod(&node, "cali2", &["10.65.0.3", "fd80:65::3"]).await;
    let both = [
        ("one", workload("cali1", &POD_ADDRESSES)),
        ("two", workload("cali2", &["10.65.0.3", "fd80:65::3"])),
    ];
    dataplane.replace(plan(&both, &[])).await.unwrap();
    for (from, to) in [
        (&first, "10.65.0.3"),
        (&first, "fd80:65::3"),
        (&second, "10.65.0.2"),
        (&second, "fd80:65::2"),
        (&first, "192.168.77.1"),
        (&first, "fd77::1"),
        (&node, "10.65.0.2"),
        (&node, "fd80:65::3"),
    ] {
        assert!(from.pings(to), "no answer from {to}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_names_what_is_missing_or_wrong() {
    let node = TestNamespace::new("node");
    let (dataplane, _reports) = start(&node).await;
    dataplane.replace(plan(&[], &[])).await.unwrap();
    let sandbox = TestNamespace::new("node");
    let host = node.open();
    let wanted = AttachRequest { mtu: Some(1400), ..request(&sandbox, "cali1", &POD_ADDRESSES) };
    attach(&host, &wanted).await.unwrap();
    assert_eq!(
        check(&host, &wanted).await.unwrap_err(),
        [
            "the host has no route 10.65.0.2/32 through cali1",
            "the host has no route fd80:65::2/128 through cali1"
        ]
    );
    let outcome = dataplane
        .apply(vec![PlanUpdate::Workload(id("one"), Some(workload("cali1", &POD_ADDRESSES)))])
        .await
        .unwrap();
    assert_eq!(outcome.failures, []);
    check(&host, &wanted).await.unwrap();

    sandbox.ip("addr del 10.65.0.2/32 dev eth0");
    sandbox.ip("-6 route del default");
    sandbox.ip("link set eth0 mtu 1300");
    assert_eq!(
        check(&host, &wanted).await.unwrap_err(),
        [
            "MTU of eth0 is 1300, not 1400",
            "address 10.65.0.2 is missing on eth0",
            "route 0.0.0.0/0 through eth0 is missing",
            "route ::/0 through eth0 is missing",
            "route 169.254.1.1/32 through eth0 is missing",
        ]
    );
    detach(&host, Some(sandbox.path().as_ref()), "eth0", "cali1").await.unwrap();
    let wrong = check(&host, &wanted).await.unwrap_err();
    assert_eq!(wrong, ["workload interface eth0 is missing", "host interface cali1 is missing"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_veth_left_by_a_crash_gives_way() {
    let (node, sandbox) = (TestNamespace::new("node"), TestNamespace::new("node"));
    node.ip("link add cali1 type veth peer name stale");
    attach(&node.open(), &request(&sandbox, "cali1", &POD_ADDRESSES)).await.unwrap();
    assert!(!node.has_link("stale"));
    assert_eq!(node.json("link show dev cali1")[0]["address"], "ee:ee:ee:ee:ee:ee");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_veth_interfaces_are_removed() {
    let (node, sandbox) = (TestNamespace::new("node"), TestNamespace::new("node"));
    node.ip("link add cali1 type bridge");
    let error = attach(&node.open(), &request(&sandbox, "cali1", &POD_ADDRESSES)).await.unwrap_err();
    assert_eq!(error.to_string(), "interface cali1: is not a veth but bridge; not removed");
    assert!(node.has_link("cali1") && !sandbox.has_link("eth0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vanished_sandbox_fails_only_attach() {
    let node = TestNamespace::new("node");
    let sandbox = TestNamespace::new("node");
    let wanted = request(&sandbox, "cali1", &POD_ADDRESSES);
    drop(sandbox);
    let host = node.open();
    let error = attach(&host, &wanted).await.unwrap_err();
    assert_eq!(error, DataplaneError::NamespaceGone { path: wanted.netns.clone() });
    detach(&host, Some(&wanted.netns), "eth0", "cali1").await.unwrap();
    assert!(!node.has_link("cali1"));
    assert!(check(&host, &wanted).await.unwrap_err()[0].contains("the sandbox is gone"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_detach_leaves_the_new_sandbox() {
    let (node, old, new) =
        (TestNamespace::new("node"), TestNamespace::new("node"), TestNamespace::new("node"));
    let host = node.open();
    attach(&host, &request(&old, "cali1", &POD_ADDRESSES)).await.unwrap();
    attach(&host, &request(&new, "cali1", &POD_ADDRESSES)).await.unwrap();
    assert!(!old.has_link("eth0"), "the old pair gave way to the new one");
    detach(&host, Some(old.path().as_ref()), "eth0", "cali1").await.unwrap();
    assert!(new.has_link("eth0") && node.has_link("cali1"));
    let path = old.path();
    drop(old);
    detach(&host, Some(path.as_ref()), "eth0", "cali1").await.unwrap();
    assert!(new.has_link("eth0") && node.has_link("cali1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_sandbox_the_veth_is_removed() {
    let node = TestNamespace::new("node");
    let sandbox = pod(&node, "cali1", &POD_ADDRESSES).await;
    detach(&node.open(), None, "eth0", "cali1").await.unwrap();
    assert!(!sandbox.has_link("eth0") && !node.has_link("cali1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attach_that_fails_leaves_nothing() {
    let (node, sandbox) = (TestNamespace::new("node"), TestNamespace::new("node"));
    let host = node.open();
    let wanted = request(&sandbox, "cali1", &POD_ADDRESSES);
    // The kernel rejects the duplicate route after the veth pair has been created.
    let twice = vec!["10.0.0.0/8".parse().unwrap(), "10.0.0.0/8".parse().unwrap()];
    let error = attach(&host, &AttachRequest { routes: twice, ..wanted.clone() }).await.unwrap_err();
    assert!(error.to_string().starts_with("route 10.0.0.0/8: "), "{error}");
    assert!(!node.has_link("cali1") && !sandbox.has_link("eth0"));

    let error = attach(&host, &AttachRequest { mtu: Some(70_000), ..wanted.clone() }).await.unwrap_err();
    assert_eq!(error.to_string(), "mtu: 70000 is out of range 1280..65535 for these addresses");
    assert!(!node.has_link("cali1"));

    sandbox.ip("link add eth0 type bridge");
    let error = attach(&host, &wanted).await.unwrap_err();
    assert!(error.to_string().ends_with("; check whether the workload is already connected"), "{error}");
    assert!(!node.has_link("cali1") && sandbox.has_link("eth0"));
}
