//! Allowed source addresses follow the routes: an address that any program routes to a workload is a valid source
//! there.

use crate::namespace::{OpenNetns, TestNamespace, eventually};
use crate::plans::{POD_ONE_ADDRESSES, POD_TWO_ADDRESSES, open_plan, two_pods};
use tortie_dataplane::DataplaneHandle;
use tortie_plan::DataplaneSettings;

fn reaches_as(from: &TestNamespace, source: &str, address: &str) -> bool {
    from.try_exec(&["ping", "-c", "1", "-w", "2", "-I", source, address]).status.success()
}

#[tokio::test(flavor = "multi_thread")]
async fn routed_addresses_are_valid_workload_sources() {
    let (node, one, _two) = two_pods().await;
    let settings = DataplaneSettings { remove_external_routes: false, ..DataplaneSettings::default() };
    let (dataplane, _reports) = DataplaneHandle::start(node.open(), settings).await.unwrap();
    dataplane.replace(open_plan()).await.unwrap();
    // Route through an address of the workload, as to a router behind it.
    for (net, own, at) in [("10.99.0.0/24", "10.99.0.7", 0), ("fd99::/64", "fd99::7", 1)] {
        let route = |verb: &str, via: &str, device: &str| {
            node.ip(&["route", verb, net, "via", via, "dev", device, "onlink", "proto", "static"]);
        };
        one.ip(&["addr", "add", own, "dev", "lo"]);
        assert!(!reaches_as(&one, own, POD_TWO_ADDRESSES[at]), "{own} is not its own");
        route("add", POD_ONE_ADDRESSES[at], "cali1");
        eventually(&format!("{own} is routed to it"), || reaches_as(&one, own, POD_TWO_ADDRESSES[at])).await;
        // When the route points to another workload, the source is valid only there.
        route("replace", POD_TWO_ADDRESSES[at], "cali2");
        eventually(&format!("{own} is another's"), || !reaches_as(&one, own, POD_TWO_ADDRESSES[at])).await;
    }
}
