//! A real Neutron with our driver against a real etcd. All scenarios share one environment, because its start takes most
//! of the time.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fixture;

use fixture::NeutronFixture;
use serde_json::{Value, json};

const RESOURCES: &str = "/calico/resources/v3/projectcalico.org";
const SUBNETS: &str = "/calico/dhcp/v2/no-region/subnet";
const STATUSES: &str = "/calico/felix/v2/no-region/host";
const DEVICE: &str = "6c1f7c7e-6f0b-4d7f-9a6c-0f5f4f0f7a01";

/// Objects that the scenarios share.
struct Network {
    network: String,
    subnet: String,
    group: String,
    port: Value,
}

#[test]
fn neutron_drives_the_datastore() {
    let mut neutron = NeutronFixture::start();
    first_resync_prepares_the_cluster(&neutron);
    nodes_are_agents(&neutron);
    let mut shared = ports_become_endpoints(&neutron);
    group_rules_become_policies(&neutron, &shared);
    port_updates_change_endpoints(&neutron, &mut shared);
    subnet_updates_are_stored(&neutron, &shared);
    qos_limits_endpoints(&neutron, &shared);
    floating_ips_are_translated(&neutron, &shared);
    statuses_reach_ports(&neutron, &shared);
    migrations_have_two_endpoints(&neutron, &shared);
    invalid_objects_block_nothing(&neutron, &shared);
    outages_fail_cleanly_and_are_repaired(&mut neutron, &shared);
    command_resyncs_one_port(&neutron, &shared);
    deletions_leave_nothing(&neutron, &shared);
}

fn heartbeat(neutron: &NeutronFixture, host: &str) {
    let now = jiff::Timestamp::now();
    let value = json!({"time": format!("{now:.0}"), "uptime": 1, "first_update": true});
    neutron.put(&format!("{STATUSES}/{host}/status"), &value.to_string());
}

/// Waits for the end of the first resync, which adjusts the settings of the cluster.
fn first_resync_prepares_the_cluster(neutron: &NeutronFixture) {
    neutron.eventually("the cluster is prepared for OpenStack", || {
        let felix = neutron.entry(&format!("{RESOURCES}/felixconfigurations/default"));
        let information = neutron.entry(&format!("{RESOURCES}/clusterinformations/default"));
        felix["spec"]["endpointReportingEnabled"] == true
            && felix["spec"]["interfacePrefix"] == "tap"
            && information["spec"]["clusterType"] == "openstack"
    });
}

fn nodes_are_agents(neutron: &NeutronFixture) {
    for host in ["cmp-1", "cmp-2"] {
        heartbeat(neutron, host);
    }
    neutron.eventually("both nodes are live agents", || {
        let agents = neutron.call("GET", "/agents", &Value::Null);
        let agents = agents.as_array().unwrap();
        agents.len() == 2
            && agents.iter().all(|agent| {
                agent["agent_type"] == "Calico per-host agent (felix)"
                    && agent["binary"] == "calico-felix"
                    && agent["alive"] == true
            })
    });
}

fn endpoint_path(host: &str, port: &Value) -> String {
    let double = |text: &str| text.replace('-', "--");
    let (device, id) = (port["device_id"].as_str().unwrap(), port["id"].as_str().unwrap());
    format!(
        "{RESOURCES}/workloadendpoints/openstack/{}-openstack-{}-{}",
        double(host),
        double(device),
        double(id)
    )
}

fn policy_path(group: &str) -> String {
    format!("{RESOURCES}/networkpolicies/openstack/ossg.default.{group}")
}

fn id(object: &Value) -> String {
    object["id"].as_str().unwrap().to_owned()
}

fn ports_become_endpoints(neutron: &NeutronFixture) -> Network {
    let network = id(&neutron.create("network", json!({"name": "net one"})));
    let subnet = id(&neutron.create(
        "subnet",
        json!({"network_id": network, "ip_version": 4, "cidr": "10.65.0.0/24", "dns_nameservers": ["9.9.9.9"],
            "allocation_pools": [{"start": "10.65.0.10", "end": "10.65.0.99"}]}),
    ));
    assert_eq!(
        neutron.entry(&format!("{SUBNETS}/{subnet}")),
        json!({"network_id": network, "cidr": "10.65.0.0/24", "host_routes": [], "gateway_ip": "10.65.0.1",
            "dns_servers": ["9.9.9.9"]})
    );
    let group = id(&neutron.create("security_group", json!({"name": "web servers"})));
    let port = neutron.create(
        "port",
        json!({"network_id": network, "device_owner": "compute:nova", "device_id": DEVICE, "binding:host_id": "cmp-1",
            "security_groups": [group]}),
    );
    assert_eq!(
        (&port["binding:vif_type"], &port["status"]),
        (&json!("tap"), &json!("DOWN")),
        "{}",
        neutron.logs()
    );
    let mac = port["mac_address"].as_str().unwrap();
    assert_eq!(port["binding:vif_details"]["mac_address"], format!("fe{}", &mac[2..]));
    let (address, port_id) = (port["fixed_ips"][0]["ip_address"].as_str().unwrap(), id(&port));
    let endpoint = neutron.entry(&endpoint_path("cmp-1", &port));
    assert_eq!(
        endpoint["spec"],
        json!({"orchestrator": "openstack", "workload": DEVICE, "node": "cmp-1", "endpoint": port_id,
            "ipNetworks": [format!("{address}/32")], "ipv4Gateway": "10.65.0.1", "mac": mac,
            "interfaceName": format!("tap{}", &port_id[..11])}),
        "{}",
        neutron.logs()
    );
    let metadata = &endpoint["metadata"];
    assert_eq!(
        metadata["labels"],
        json!({"projectcalico.org/namespace": "openstack", "projectcalico.org/orchestrator": "openstack",
            "projectcalico.org/openstack-project-id": "proj1", "projectcalico.org/openstack-network-name": "net_one",
            "sg-name.projectcalico.org/openstack-web_servers": group,
            (format!("sg.projectcalico.org/openstack-{group}")): "web_servers"})
    );
    assert_eq!(metadata["annotations"], json!({"openstack.projectcalico.org/network-id": network}));
    assert_eq!(metadata["uid"].as_str().unwrap().len(), 36);
    Network { network, subnet, group, port }
}

fn group_rules_become_policies(neutron: &NeutronFixture, shared: &Network) {
    let group = &shared.group;
    let path = policy_path(group);
    let allow = |version: u8| json!({"action": "Allow", "ipVersion": version});
    let sorted = |rules: &Value| {
        let mut rules: Vec<String> = rules.as_array().unwrap().iter().map(Value::to_string).collect();
        rules.sort();
        rules
    };
    let created = neutron.entry(&path);
    assert_eq!(created["spec"]["selector"], format!("has(sg.projectcalico.org/openstack-{group})"));
    assert_eq!(created["spec"]["ingress"], json!([]));
    assert_eq!(sorted(&created["spec"]["egress"]), sorted(&json!([allow(4), allow(6)])));
    let rule = neutron.create(
        "security_group_rule",
        json!({"security_group_id": group, "direction": "ingress", "protocol": "tcp", "port_range_min": 80,
            "port_range_max": 90, "remote_ip_prefix": "10.0.0.0/8"}),
    );
    let members = neutron.create(
        "security_group_rule",
        json!({"security_group_id": group, "direction": "ingress", "remote_group_id": group}),
    );
    let changed = neutron.entry(&path);
    let selector = format!("has(sg.projectcalico.org/openstack-{group})");
    let expected = json!([
        {"action": "Allow", "ipVersion": 4, "protocol": 6, "source": {"nets": ["10.0.0.0/8"]},
            "destination": {"ports": ["80:90"]}},
        {"action": "Allow", "ipVersion": 4, "source": {"selector": selector}},
    ]);
    assert_eq!(sorted(&changed["spec"]["ingress"]), sorted(&expected));
    assert_eq!(changed["metadata"], created["metadata"], "an update keeps the metadata");
    neutron.delete("security_group_rule", &id(&rule));
    assert_eq!(neutron.entry(&path)["spec"]["ingress"], json!([expected[1]]));
    neutron.delete("security_group_rule", &id(&members));
    assert_eq!(neutron.entry(&path)["spec"]["ingress"], json!([]));
}

fn port_updates_change_endpoints(neutron: &NeutronFixture, shared: &mut Network) {
    let path = endpoint_path("cmp-1", &shared.port);
    let before = neutron.entry(&path);
    neutron.update(
        "port",
        &id(&shared.port),
        &json!({"allowed_address_pairs": [{"ip_address": "23.23.23.2"}]}),
    );
    let after = neutron.entry(&path);
    assert_eq!(after["spec"]["allowedIps"], json!(["23.23.23.2/32"]));
    assert_eq!(after["spec"]["ipNetworks"], json!([before["spec"]["ipNetworks"][0], "23.23.23.2/32"]));
    assert_eq!(after["metadata"], before["metadata"]);
    // Names of networks and groups are labels.
    neutron.update("network", &shared.network, &json!({"name": "net2"}));
    neutron.update("security_group", &shared.group, &json!({"name": "db"}));
    let labels = neutron.entry(&path)["metadata"]["labels"].clone();
    assert_eq!(labels["projectcalico.org/openstack-network-name"], "net2");
    assert_eq!(labels["sg-name.projectcalico.org/openstack-db"], shared.group);
    shared.port = neutron.update("port", &id(&shared.port), &json!({"allowed_address_pairs": []}));
    assert_eq!(neutron.entry(&path)["spec"], before["spec"]);
}

fn subnet_updates_are_stored(neutron: &NeutronFixture, shared: &Network) {
    let path = format!("{SUBNETS}/{}", shared.subnet);
    neutron.update("subnet", &shared.subnet, &json!({"dns_nameservers": [], "gateway_ip": "10.65.0.254"}));
    let stored = neutron.entry(&path);
    assert_eq!(stored["gateway_ip"], "10.65.0.254");
    assert!(stored.get("dns_servers").is_none(), "{stored}");
    let endpoint = neutron.entry(&endpoint_path("cmp-1", &shared.port));
    assert_eq!(endpoint["spec"]["ipv4Gateway"], "10.65.0.254");
    neutron.update("subnet", &shared.subnet, &json!({"enable_dhcp": false}));
    assert_eq!(neutron.entry(&path), Value::Null);
    neutron.update("subnet", &shared.subnet, &json!({"enable_dhcp": true, "gateway_ip": "10.65.0.1"}));
    assert_eq!(neutron.entry(&path)["gateway_ip"], "10.65.0.1");
}

fn qos_limits_endpoints(neutron: &NeutronFixture, shared: &Network) {
    let path = endpoint_path("cmp-1", &shared.port);
    let policy = id(&neutron.create("policy", json!({"name": "slow"})));
    let rules = format!("/qos/policies/{policy}");
    let rule =
        json!({"bandwidth_limit_rule": {"max_kbps": 1000, "max_burst_kbps": 2000, "direction": "ingress"}});
    neutron.call("POST", &format!("{rules}/bandwidth_limit_rules"), &rule);
    neutron.update("port", &id(&shared.port), &json!({"qos_policy_id": policy}));
    let limits = json!({"ingressBandwidth": 1_000_000, "ingressBurst": 4_294_967_296_i64, "ingressPeakrate": 2_000_000});
    assert_eq!(neutron.entry(&path)["spec"]["qosControls"], limits);
    let rule = json!({"packet_rate_limit_rule": {"max_kpps": 5, "max_burst_kpps": 0, "direction": "egress"}});
    neutron.call("POST", &format!("{rules}/packet_rate_limit_rules"), &rule);
    assert_eq!(neutron.entry(&path)["spec"]["qosControls"]["egressPacketRate"], 5000, "{}", neutron.logs());
    // The policy of the network applies if the port has none.
    neutron.update("port", &id(&shared.port), &json!({"qos_policy_id": null}));
    assert!(neutron.entry(&path)["spec"].get("qosControls").is_none());
    neutron.update("network", &shared.network, &json!({"qos_policy_id": policy}));
    assert_eq!(neutron.entry(&path)["spec"]["qosControls"]["ingressBandwidth"], 1_000_000);
    neutron.update("network", &shared.network, &json!({"qos_policy_id": null}));
    assert!(neutron.entry(&path)["spec"].get("qosControls").is_none());
    neutron.delete("policy", &policy);
}

fn floating_ips_are_translated(neutron: &NeutronFixture, shared: &Network) {
    let path = endpoint_path("cmp-1", &shared.port);
    let external = json!({"name": "ext", "router:external": true, "provider:network_type": "flat",
        "provider:physical_network": "p1"});
    let external = id(&neutron.create("network", external));
    neutron.create("subnet", json!({"network_id": external, "ip_version": 4, "cidr": "172.24.0.0/24"}));
    let router =
        id(&neutron
            .create("router", json!({"name": "r", "external_gateway_info": {"network_id": external}})));
    let interface = json!({"subnet_id": shared.subnet});
    neutron.call("PUT", &format!("/routers/{router}/add_router_interface"), &interface);
    let floating =
        neutron.create("floatingip", json!({"floating_network_id": external, "port_id": shared.port["id"]}));
    let nats = json!([{"internalIP": shared.port["fixed_ips"][0]["ip_address"], "externalIP": floating["floating_ip_address"]}]);
    assert_eq!(neutron.entry(&path)["spec"]["ipNATs"], nats, "{}", neutron.logs());
    neutron.update("floatingip", &id(&floating), &json!({"port_id": null}));
    assert!(neutron.entry(&path)["spec"].get("ipNATs").is_none());
    neutron.update("floatingip", &id(&floating), &json!({"port_id": shared.port["id"]}));
    assert_eq!(neutron.entry(&path)["spec"]["ipNATs"], nats);
    neutron.delete("floatingip", &id(&floating));
    assert!(neutron.entry(&path)["spec"].get("ipNATs").is_none());
    neutron.call("PUT", &format!("/routers/{router}/remove_router_interface"), &interface);
    neutron.delete("router", &router);
    neutron.delete("network", &external);
}

fn status_path(host: &str, port: &Value) -> String {
    format!("{STATUSES}/{host}/workload/openstack/openstack%2f{DEVICE}/endpoint/{}", id(port))
}

fn statuses_reach_ports(neutron: &NeutronFixture, shared: &Network) {
    let path = status_path("cmp-1", &shared.port);
    for (value, expected) in [
        (r#"{"status":"up"}"#, "ACTIVE"),
        (r#"{"status":"down"}"#, "DOWN"),
        (r#"{"status":"error"}"#, "ERROR"),
        (r#"{"status":"up"}"#, "ACTIVE"),
        ("half-written", "ERROR"),
        (r#"{"status":"up"}"#, "ACTIVE"),
        ("", "ERROR"),
    ] {
        if value.is_empty() {
            neutron.etcd.ctl(&["del", &path]).unwrap();
        } else {
            neutron.put(&path, value);
        }
        neutron.eventually(&format!("the port is {expected} after {value:?}"), || {
            neutron.show("port", &id(&shared.port))["status"] == expected
        });
    }
    neutron.put(&path, r#"{"status":"up"}"#);
}

fn migrations_have_two_endpoints(neutron: &NeutronFixture, shared: &Network) {
    let port = id(&shared.port);
    let (source, destination) = (endpoint_path("cmp-1", &shared.port), endpoint_path("cmp-2", &shared.port));
    let migration = destination.replace("workloadendpoints", "livemigrations");
    neutron.update("port", &port, &json!({"binding:profile": {"migrating_to": "cmp-2"}}));
    assert_eq!(neutron.entry(&source)["spec"]["node"], "cmp-1");
    assert_eq!(neutron.entry(&destination)["spec"]["node"], "cmp-2", "{}", neutron.logs());
    let identify = |host: &str| {
        json!({"workloadEndpoint": {"hostname": host, "orchestratorID": "openstack",
            "workloadID": format!("openstack/{DEVICE}"), "endpointID": port}})
    };
    assert_eq!(
        neutron.entry(&migration)["spec"],
        json!({"source": identify("cmp-1"), "target": identify("cmp-2")})
    );
    neutron.update("port", &port, &json!({"binding:host_id": "cmp-2", "binding:profile": {}}));
    assert_eq!(neutron.entry(&source), Value::Null);
    assert_eq!(neutron.entry(&migration), Value::Null);
    assert_eq!(neutron.entry(&destination)["spec"]["node"], "cmp-2");
    neutron.update("port", &port, &json!({"binding:host_id": "cmp-1"}));
    assert_eq!(neutron.entry(&source)["spec"]["node"], "cmp-1");
    assert_eq!(neutron.entry(&destination), Value::Null);
}

fn invalid_objects_block_nothing(neutron: &NeutronFixture, shared: &Network) {
    let path = endpoint_path("cmp-1", &shared.port);
    let before = neutron.entry(&path);
    // Calico's endpoints have no networks as address pairs.
    let pairs = json!({"allowed_address_pairs": [{"ip_address": "10.9.0.0/16"}]});
    neutron.update("port", &id(&shared.port), &pairs);
    assert_eq!(neutron.entry(&path), before, "the endpoint stays as it was");
    // One rule that cannot be expressed leaves the others in force.
    let rule = |fields: Value| {
        let mut rule = json!({"security_group_id": shared.group, "direction": "ingress"});
        rule.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        id(&neutron.create("security_group_rule", rule))
    };
    let rules = [
        rule(json!({"protocol": "udplite", "port_range_min": 1, "port_range_max": 9})),
        rule(json!({"protocol": "vrrp"})),
    ];
    let ingress = neutron.entry(&policy_path(&shared.group))["spec"]["ingress"].clone();
    assert_eq!(ingress, json!([{"action": "Allow", "ipVersion": 4, "protocol": 112}]));
    for rule in rules {
        neutron.delete("security_group_rule", &rule);
    }
    neutron.update("port", &id(&shared.port), &json!({"allowed_address_pairs": []}));
}

fn outages_fail_cleanly_and_are_repaired(neutron: &mut NeutronFixture, shared: &Network) {
    let owned = |neutron: &NeutronFixture| {
        let mut keys = neutron.keys(&format!("{RESOURCES}/workloadendpoints/"));
        keys.extend(neutron.keys(&format!("{RESOURCES}/networkpolicies/")));
        keys.extend(neutron.keys("/calico/dhcp/"));
        let entries: Vec<(String, Value)> = keys
            .into_iter()
            .map(|key| {
                let spec = match neutron.entry(&key) {
                    Value::Object(mut entry) => entry.remove("spec").unwrap_or(Value::Object(entry)),
                    other => other,
                };
                (key, spec)
            })
            .collect();
        entries
    };
    let before = owned(neutron);
    neutron.kill_daemon();
    let port = json!({"port": {"network_id": shared.network, "device_owner": "compute:nova", "device_id": DEVICE,
        "binding:host_id": "cmp-1", "project_id": "proj1"}});
    let (status, response) = neutron.request("POST", "/ports", &port);
    assert!(status >= 500, "{status} {response}");
    let ports = neutron.call(
        "GET",
        &format!("/ports?network_id={}&device_owner=compute:nova", shared.network),
        &Value::Null,
    );
    assert_eq!(ports.as_array().unwrap().len(), 1, "the rejected port does not exist");

    // Everything that can be wrong: missing, changed, unreadable and superfluous entries.
    neutron.etcd.ctl(&["del", &format!("{SUBNETS}/{}", shared.subnet)]).unwrap();
    neutron.put(&endpoint_path("cmp-1", &shared.port), r#"{"kind":"WorkloadEndpoint","spec":["#);
    neutron.put(&policy_path(&shared.group), r#"{"kind":"NetworkPolicy","spec":{"selector":"all()"}}"#);
    neutron.put(&policy_path("no-such-group"), r#"{"kind":"NetworkPolicy","spec":{}}"#);
    neutron.put(&format!("{SUBNETS}/no-such-subnet"), "{}");
    let stale = json!({"device_id": "d9", "id": "p9"});
    let stale_value = json!({"kind": "WorkloadEndpoint", "spec": {"node": "cmp-1"}}).to_string();
    neutron.put(&endpoint_path("cmp-1", &stale), &stale_value);
    let foreign = format!("{RESOURCES}/networkpolicies/openstack/default.of-the-operator");
    neutron.put(&foreign, r#"{"kind":"NetworkPolicy","spec":{"selector":"all()"}}"#);
    neutron.start_daemon();
    let mut expected = before;
    expected.push((foreign.clone(), json!({"selector": "all()"})));
    expected.sort_by(|a, b| a.0.cmp(&b.0));
    let neutron = &*neutron;
    neutron.eventually("the resync restores what Neutron has", || {
        let mut now = owned(neutron);
        now.sort_by(|a, b| a.0.cmp(&b.0));
        now == expected
    });
    neutron.etcd.ctl(&["del", &foreign]).unwrap();
    // Neutron works again, and reports continue.
    heartbeat(neutron, "cmp-1");
    neutron.put(&status_path("cmp-1", &shared.port), r#"{"status":"down"}"#);
    neutron.eventually("the port is DOWN", || neutron.show("port", &id(&shared.port))["status"] == "DOWN");
}

fn command_resyncs_one_port(neutron: &NeutronFixture, shared: &Network) {
    let path = endpoint_path("cmp-1", &shared.port);
    let before = neutron.entry(&path)["spec"].clone();
    neutron.etcd.ctl(&["del", &path]).unwrap();
    let (status, report) =
        neutron.resync(&["--port", shared.port["id"].as_str().unwrap(), "--include-sgs-for-ports"]);
    assert_eq!((status, &report["ok"]), (0, &json!(true)), "{report}");
    assert_eq!(neutron.entry(&path)["spec"], before);
    let endpoints = &report["phases"]["endpoints"];
    for (field, count) in [("created", 1), ("neutron_items", 1), ("etcd_items", 0), ("deleted", 0)] {
        assert_eq!(endpoints[field], count, "{field}: {report}");
    }
    assert_eq!(report["phases"]["policy"]["correct"], 1, "{report}");
    assert_eq!(report["scope"]["full"], false, "{report}");
}

fn deletions_leave_nothing(neutron: &NeutronFixture, shared: &Network) {
    neutron.delete("port", &id(&shared.port));
    assert_eq!(neutron.keys(&format!("{RESOURCES}/workloadendpoints/")), Vec::<String>::new());
    neutron.delete("security_group", &shared.group);
    assert_eq!(neutron.entry(&policy_path(&shared.group)), Value::Null);
    neutron.delete("network", &shared.network);
    assert_eq!(neutron.keys("/calico/dhcp/"), Vec::<String>::new());
    assert_eq!(neutron.keys(&format!("{RESOURCES}/livemigrations/")), Vec::<String>::new());
}
