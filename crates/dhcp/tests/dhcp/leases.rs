//! Leases that follow from entries of the store.

use serde_json::{Value, json};
use std::net::Ipv4Addr;
use tortie_dhcp::table::{LeaseProblem, LeaseSettings, LeaseTable};
use tortie_model::{FeedEvent, Kind, Revision, StoreKey, StoreValue};

pub fn settings() -> LeaseSettings {
    LeaseSettings {
        host: "cmp-1".to_owned(),
        region: String::new(),
        interface_prefixes: vec!["tap".to_owned()],
        lease_seconds: 3600,
        domain: "openstacklocal".to_owned(),
        dns_servers: Vec::new(),
    }
}

fn put(key: StoreKey, value: &Value) -> FeedEvent {
    let value = StoreValue::decode(&key, value.to_string().as_bytes()).unwrap();
    FeedEvent::Put { key, value, revision: Revision::from(1) }
}

fn endpoint(port: &str, spec: Value) -> FeedEvent {
    let name = format!("cmp--1-openstack-vm-{port}");
    let mut all = json!({
        "orchestrator": "openstack", "workload": "vm", "node": "cmp-1", "endpoint": port,
        "interfaceName": format!("tap{port}"), "mac": "fa:16:3e:00:00:01", "ipNetworks": ["10.65.0.2/32"],
    });
    all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let object = json!({
        "kind": "WorkloadEndpoint", "apiVersion": "projectcalico.org/v3", "spec": all,
        "metadata": {"name": name, "namespace": "openstack", "annotations": {
            "openstack.projectcalico.org/network-id": "n1",
            "openstack.projectcalico.org/fqdn": "web.cloud.example.",
        }},
    });
    put(StoreKey::resource(Kind::WorkloadEndpoint, "openstack", &name), &object)
}

fn subnet(id: &str, value: Value) -> FeedEvent {
    let mut all = json!({"network_id": "n1", "host_routes": []});
    all.as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
    put(StoreKey::DhcpSubnet { region: String::new(), id: id.to_owned() }, &all)
}

fn table(events: impl IntoIterator<Item = FeedEvent>) -> LeaseTable {
    let mut table = LeaseTable::new(settings());
    for event in events {
        table.apply(event);
    }
    table
}

#[test]
fn leases_join_endpoints_with_subnets() {
    let table = table([
        endpoint(
            "a",
            json!({"ipNetworks": ["10.65.0.2/32", "10.65.0.7/32", "fd00::2/128"], "allowedIps": ["10.65.0.7"]}),
        ),
        subnet(
            "s4",
            json!({"cidr": "10.65.0.0/24", "gateway_ip": "10.65.0.1", "dns_servers": ["9.9.9.9"],
            "host_routes": [{"destination": "192.0.2.0/24", "nexthop": "10.65.0.9"}]}),
        ),
        subnet("s6", json!({"cidr": "fd00::/64", "gateway_ip": "fd00::1"})),
        subnet("other", json!({"cidr": "10.65.0.0/28", "network_id": "n2"})),
    ]);
    let derived = table.derive();
    assert!(derived.problems.is_empty(), "{:?}", derived.problems);
    let lease = &derived.leases["tapa"];
    assert_eq!((lease.host_name.as_str(), lease.domain.as_str()), ("web", "cloud.example"));
    let v4 = lease.v4.as_ref().unwrap();
    assert_eq!(
        (v4.address, v4.subnet.prefix_len()),
        (Ipv4Addr::new(10, 65, 0, 2), 24),
        "not the other network"
    );
    assert_eq!(
        (v4.gateway, v4.dns_servers.len(), v4.routes.len()),
        (Some(Ipv4Addr::new(10, 65, 0, 1)), 1, 1)
    );
    let v6 = lease.v6.as_ref().unwrap();
    assert_eq!((v6.addresses.len(), v6.is_managed, v6.prefixes[0].is_autonomous), (1, true, false));
}

#[test]
fn modes_of_ipv6_subnets_decide() {
    for (mode, managed, other, autonomous, addresses) in [
        ("slaac", false, false, true, 0),
        ("dhcpv6-stateless", false, true, true, 1),
        ("dhcpv6-stateful", true, true, false, 1),
    ] {
        let table = table([
            endpoint("a", json!({"ipNetworks": ["fd00::2/128"]})),
            subnet("s6", json!({"cidr": "fd00::/64", "ipv6_ra_mode": mode, "ipv6_address_mode": mode})),
        ]);
        let lease = table.derive().leases.remove("tapa").unwrap().v6.unwrap();
        let found =
            (lease.is_managed, lease.has_other, lease.prefixes[0].is_autonomous, lease.addresses.len());
        assert_eq!(found, (managed, other, autonomous, addresses), "{mode}");
    }
}

#[test]
fn faulty_endpoints_do_not_block_others() {
    let v4 = || subnet("s4", json!({"cidr": "10.65.0.0/24"}));
    let table = table([
        v4(),
        endpoint("a", json!({})),
        endpoint("b", json!({"interfaceName": "eth0"})),
        endpoint("c", json!({"mac": "01:00:5e:00:00:01"})),
        endpoint("d", json!({"ipNetworks": ["10.65.0.0/24", "10.99.0.1/32"]})),
        endpoint("e", json!({"interfaceName": "tapa"})),
        endpoint("f", json!({"node": "cmp-2", "interfaceName": "tapf"})),
    ]);
    let derived = table.derive();
    assert_eq!(derived.leases.keys().collect::<Vec<_>>(), ["tapa"]);
    let problems: Vec<String> = derived.problems.values().flatten().map(ToString::to_string).collect();
    assert_eq!(problems.len(), 5, "{problems:?}");
    for part in ["eth0", "01:00:5e:00:00:01", "10.65.0.0/24", "no subnet", "already belongs to"] {
        assert!(problems.iter().any(|problem| problem.contains(part)), "{part}: {problems:?}");
    }
    let taken = derived.problems["cmp--1-openstack-vm-e"].first().unwrap();
    assert!(matches!(taken, LeaseProblem::InterfaceTaken { owner, .. } if owner == "cmp--1-openstack-vm-a"));
}

#[test]
fn deletions_and_unreadable_entries_differ() {
    let mut table = table([endpoint("a", json!({})), subnet("s4", json!({"cidr": "10.65.0.0/24"}))]);
    let key = StoreKey::DhcpSubnet { region: String::new(), id: "s4".to_owned() };
    let revision = Revision::from(2);
    let unreadable = FeedEvent::Unreadable {
        key: key.clone(),
        revision: revision.clone(),
        text: "{".to_owned(),
        reason: "no JSON".to_owned(),
    };
    assert!(!table.apply(unreadable));
    assert_eq!((table.derive().leases.len(), table.unreadable_entries), (1, 1));
    assert!(!table.apply(endpoint("a", json!({}))), "the same again");
    assert!(table.apply(FeedEvent::Delete { key, revision }));
    assert_eq!(table.derive().leases.len(), 0);
    assert!(table.apply(FeedEvent::InSync) && table.is_in_sync());
}

#[test]
fn legacy_subnets_give_way_to_current_ones() {
    let legacy = StoreKey::LegacyDhcpSubnet { id: "s4".to_owned() };
    let mut table = table([
        endpoint("a", json!({})),
        put(legacy, &json!({"network_id": "n1", "cidr": "10.65.0.0/24", "dns_servers": ["1.1.1.1"]})),
    ]);
    let dns = |table: &LeaseTable| table.derive().leases["tapa"].v4.as_ref().unwrap().dns_servers[0];
    assert_eq!(dns(&table), Ipv4Addr::new(1, 1, 1, 1));
    table.apply(subnet("s4", json!({"cidr": "10.65.0.0/24", "dns_servers": ["9.9.9.9"]})));
    assert_eq!(dns(&table), Ipv4Addr::new(9, 9, 9, 9));
}

#[test]
fn tables_are_bounded() {
    use tortie_dhcp::table::MAX_SUBNETS;
    let mut table = LeaseTable::new(settings());
    let value = json!({"network_id": "n1", "cidr": "10.65.0.0/24", "host_routes": []});
    for number in 0..=MAX_SUBNETS {
        let key = StoreKey::DhcpSubnet { region: String::new(), id: number.to_string() };
        assert_eq!(table.apply(put(key, &value)), number < MAX_SUBNETS);
    }
    assert_eq!((table.subnet_count(), table.ignored_entries), (MAX_SUBNETS, 1));
}
