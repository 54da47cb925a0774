//! The kernel rejects an object of a workload: the failure names that object and that workload only.

use crate::namespace::{OpenNetns, TestNamespace, eventually, id, plan, pod, request, workload};
use std::sync::{Arc, Mutex};
use tortie_dataplane::pod::attach;
use tortie_dataplane::{DataplaneHandle, KernelFaults, KernelObject, Netns};
use tortie_plan::{DataplaneSettings, PlanUpdate, PlannedWorkload};

const FIRST_POD_ADDRESSES: [&str; 2] = ["10.65.0.2", "fd80:65::2"];
const SECOND_POD_ADDRESSES: [&str; 2] = ["10.65.0.3", "fd80:65::3"];
const EINVAL: i32 = 22;

/// Returns a namespace in which the kernel rejects the object with this text, while the text is set.
fn failing(node: &TestNamespace) -> (Netns, Arc<Mutex<Option<String>>>) {
    let refused: Arc<Mutex<Option<String>>> = Arc::default();
    let asked = refused.clone();
    let faults = KernelFaults::new(move |object: &KernelObject| {
        let refused = asked.lock().unwrap();
        refused.as_ref().filter(|text| object.to_string() == **text).map(|_| EINVAL)
    });
    (node.open().with_faults(faults), refused)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_attach_names_the_object() {
    let (node, sandbox) = (TestNamespace::new("node"), TestNamespace::new("pod"));
    let (host, refused) = failing(&node);
    let wanted = request(&sandbox, "cali1", &FIRST_POD_ADDRESSES);
    for object in [
        "interface cali1",
        "interface eth0",
        "address 10.65.0.2 on eth0",
        "address fd80:65::2 on eth0",
        "route 169.254.1.1/32",
        "route 0.0.0.0/0",
        "route ::/0",
        "neighbour 169.254.1.1 on eth0",
        "neighbour fe80::ecee:eeff:feee:eeee on eth0",
        "sysctl net.ipv4.conf.cali1.proxy_arp",
        "sysctl net.ipv6.conf.cali1.proxy_ndp",
    ] {
        *refused.lock().unwrap() = Some(object.to_owned());
        let error = attach(&host, &wanted).await.unwrap_err().to_string();
        assert!(error.starts_with(object), "{object}: {error}");
        assert!(!node.has_link("cali1") && !sandbox.has_link("eth0"), "{object}: something is left");
    }
    *refused.lock().unwrap() = None;
    attach(&host, &wanted).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn rejections_are_reported_for_their_workload_until_repaired() {
    let node = TestNamespace::new("node");
    let _one = pod(&node, "cali1", &FIRST_POD_ADDRESSES).await;
    let _two = pod(&node, "cali2", &SECOND_POD_ADDRESSES).await;
    let (host, refused) = failing(&node);
    let (dataplane, _reports) = DataplaneHandle::start(host, DataplaneSettings::default()).await.unwrap();
    let one = PlannedWorkload { mac: Some([2, 0, 0, 0, 0, 1]), ..workload("cali1", &FIRST_POD_ADDRESSES) };
    let both = plan(&[("one", one.clone()), ("two", workload("cali2", &SECOND_POD_ADDRESSES))], &[]);
    let alone = plan(&[("two", workload("cali2", &SECOND_POD_ADDRESSES))], &[]);
    for object in [
        "route 10.65.0.2/32",
        "route fd80:65::2/128",
        "neighbour 10.65.0.2 on cali1",
        "sysctl net.ipv4.conf.cali1.proxy_arp",
        "sysctl net.ipv6.conf.cali1.proxy_ndp",
        "chain to-cali1",
        "rule 0 of chain from-cali1",
        "element cali1 . 10.65.0.2 of set sources-4",
        "element cali1 . fd80:65::2 of set sources-6",
        "element cali1 of map to-workload",
    ] {
        assert_eq!(dataplane.replace(alone.clone()).await.unwrap().failures, [], "{object}");
        // Reset the sysctls to their defaults.
        for key in ["net/ipv4/conf/cali1/proxy_arp", "net/ipv6/conf/cali1/proxy_ndp"] {
            node.exec(&["sh", "-c", &format!("echo 0 > /proc/sys/{key}")]);
        }
        *refused.lock().unwrap() = Some(object.to_owned());
        let updates = vec![
            PlanUpdate::Workload(id("one"), Some(one.clone())),
            PlanUpdate::WorkloadPolicy(id("one"), both.workload_policies.get(&id("one")).cloned()),
        ];
        let outcome = dataplane.apply(updates).await.unwrap();
        let named: Vec<_> =
            outcome.failures.iter().filter(|failure| failure.object.to_string() == object).collect();
        assert!(!named.is_empty(), "{object}: {:?}", outcome.failures);
        // If even the drop-all form of a chain is rejected, the kernel rejects the whole transaction; that is
        // reported too.
        let of_one =
            named.iter().all(|failure| failure.concerns(&id("one")) && !failure.concerns(&id("two")));
        assert!(of_one, "{object}: {named:?}");
        let again = dataplane.apply(Vec::new()).await.unwrap();
        assert!(again.failures.iter().any(|failure| failure.concerns(&id("one"))), "{object} stands");

        *refused.lock().unwrap() = None;
        eventually(&format!("{object} is mended"), || {
            let outcome = tokio::task::block_in_place(|| {
                tokio::runtime::Handle::current().block_on(dataplane.apply(Vec::new()))
            });
            outcome.unwrap().failures.is_empty()
        })
        .await;
    }
}
