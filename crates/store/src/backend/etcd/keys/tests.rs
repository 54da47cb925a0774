use super::*;
use proptest::prelude::*;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn affinity(affinity: AffinityType, owner: &str, cidr: &str) -> StoreKey {
    StoreKey::BlockAffinity { affinity, owner: owner.to_owned(), cidr: net(cidr) }
}

fn status(region: &str, workload: &str) -> StoreKey {
    StoreKey::WorkloadEndpointStatus(Box::new(WorkloadStatusKey {
        region: region.to_owned(),
        host: "rack1-n7".to_owned(),
        orchestrator: "k8s".to_owned(),
        workload: workload.to_owned(),
        endpoint: "eth0".to_owned(),
    }))
}

#[test]
fn keys_have_the_text_other_clients_use() {
    let host = || "rack1-n7".to_owned();
    let no_region = String::new;
    let table: &[(StoreKey, &str, &str)] = &[
        (
            StoreKey::resource(Kind::GlobalNetworkPolicy, "", "deny-metadata"),
            "/calico/resources/v3/projectcalico.org/globalnetworkpolicies/deny-metadata",
            "GlobalNetworkPolicy(deny-metadata)",
        ),
        (
            StoreKey::resource(Kind::NetworkPolicy, "prod", "allow-dns"),
            "/calico/resources/v3/projectcalico.org/networkpolicies/prod/allow-dns",
            "NetworkPolicy(prod/allow-dns)",
        ),
        (
            StoreKey::resource(Kind::IPPool, "dropped", "pool-a"),
            "/calico/resources/v3/projectcalico.org/ippools/pool-a",
            "IPPool(pool-a)",
        ),
        (
            StoreKey::Block { cidr: net("10.65.3.0/26") },
            "/calico/ipam/v2/assignment/ipv4/block/10.65.3.0-26",
            "BlockKey(cidr=10.65.3.0/26)",
        ),
        (
            StoreKey::Block { cidr: net("fd00:65::40/122") },
            "/calico/ipam/v2/assignment/ipv6/block/fd00:65::40-122",
            "BlockKey(cidr=fd00:65::40/122)",
        ),
        (
            affinity(AffinityType::Host, "rack1-n7", "10.65.3.0/26"),
            "/calico/ipam/v2/host/rack1-n7/ipv4/block/10.65.3.0-26",
            "BlockAffinityKey(cidr=10.65.3.0/26, host=rack1-n7, affinityType=host)",
        ),
        (
            affinity(AffinityType::Virtual, "load-balancer", "fd00:65::40/122"),
            "/calico/ipam/v2/virtual/load-balancer/ipv6/block/fd00:65::40-122",
            "BlockAffinityKey(cidr=fd00:65::40/122, host=load-balancer, affinityType=virtual)",
        ),
        (
            StoreKey::Handle { id: "k8s-pod-network.6F1d0a".to_owned() },
            "/calico/ipam/v2/handle/k8s-pod-network.6F1d0a",
            "IPAMHandleKey(id=k8s-pod-network.6F1d0a)",
        ),
        (StoreKey::IpamConfig, "/calico/ipam/v2/config", "IPAMConfigKey()"),
        (StoreKey::IpamHost { host: host() }, "/calico/ipam/v2/host/rack1-n7", "IPAMHostKey(host=rack1-n7)"),
        (
            StoreKey::FelixStatus { region: no_region(), host: host() },
            "/calico/felix/v2/no-region/host/rack1-n7/status",
            "StatusReport(hostname=rack1-n7)",
        ),
        (
            StoreKey::FelixLastStatus { region: "north".to_owned(), host: host() },
            "/calico/felix/v2/region-north/host/rack1-n7/last_reported_status",
            "LastStatusReport(hostname=rack1-n7)",
        ),
        (
            status("", "prod/web-0"),
            "/calico/felix/v2/no-region/host/rack1-n7/workload/k8s/prod%2fweb-0/endpoint/eth0",
            "WorkloadEndpointStatus(hostname=rack1-n7, orchestrator=k8s, workload=prod/web-0, name=eth0)",
        ),
        (
            status("", "50%2f/x"),
            "/calico/felix/v2/no-region/host/rack1-n7/workload/k8s/50%252f%2fx/endpoint/eth0",
            "WorkloadEndpointStatus(hostname=rack1-n7, orchestrator=k8s, workload=50%2f/x, name=eth0)",
        ),
        (
            StoreKey::HostEndpointStatus { host: host(), endpoint: "eth0".to_owned() },
            "/calico/felix/v1/host/rack1-n7/endpoint/eth0",
            "HostEndpointStatus(hostname=rack1-n7, name=eth0)",
        ),
        (
            StoreKey::DhcpSubnet { region: no_region(), id: "5f3e".to_owned() },
            "/calico/dhcp/v2/no-region/subnet/5f3e",
            "DHCPSubnet(5f3e)",
        ),
        (
            StoreKey::DhcpSubnet { region: "north".to_owned(), id: "5f3e".to_owned() },
            "/calico/dhcp/v2/region-north/subnet/5f3e",
            "DHCPSubnet(5f3e)",
        ),
        (
            StoreKey::LegacyDhcpSubnet { id: "5f3e".to_owned() },
            "/calico/dhcp/v1/subnet/5f3e",
            "DHCPSubnet(5f3e)",
        ),
        (StoreKey::CompactRevision, "compact_rev_key", "compact_rev_key"),
        (
            StoreKey::NeutronElection { region: String::new() },
            "/calico/openstack/v2/no-region/neutron_election",
            "NeutronElection(region=)",
        ),
        (
            StoreKey::NeutronElection { region: "east".into() },
            "/calico/openstack/v2/region-east/neutron_election",
            "NeutronElection(region=east)",
        ),
        (StoreKey::LegacyNeutronElection, "/calico/openstack/v1/neutron_election", "NeutronElection(legacy)"),
    ];
    for (key, path, shown) in table {
        assert_eq!(self::path(key), *path);
        assert_eq!(parse(path).as_ref(), Some(key), "{path}");
        assert_eq!(key.to_string(), *shown);
    }
}

#[test]
fn block_keys_are_masked() {
    assert_eq!(
        path(&StoreKey::Block { cidr: net("10.65.3.9/26") }),
        "/calico/ipam/v2/assignment/ipv4/block/10.65.3.0-26"
    );
}

#[test]
fn foreign_keys_are_not_ours() {
    for path in [
        "",
        "/",
        "/registry/pods/default/web",
        "/calico/resources/v3/projectcalico.org/",
        "/calico/resources/v3/projectcalico.org/ippools",
        "/calico/resources/v3/projectcalico.org/ippools/",
        "/calico/resources/v3/projectcalico.org/ippools/a/b",
        "/calico/resources/v3/projectcalico.org/networkpolicies/only-name",
        "/calico/resources/v3/projectcalico.org/networkpolicies//name",
        "/calico/resources/v3/projectcalico.org/nosuch/a",
        "/calico/ipam/v2/assignment/ipv4/block/10.65.3.0",
        "/calico/ipam/v2/assignment/ipv4/block/10.65.3.1-26",
        "/calico/ipam/v2/assignment/ipv6/block/10.65.3.0-26",
        "/calico/ipam/v2/assignment/ipv6/block/fd00:65:0::40-122",
        "/calico/ipam/v2/handle/",
        "/calico/ipam/v2/config/x",
        "/calico/ipam/v2/virtual/load-balancer",
        "/calico/ipam/v2/neither/x/ipv4/block/10.65.3.0-26",
        "/calico/felix/v2/nowhere/host/n/status",
        "/calico/felix/v2/region-/host/n/status",
        "/calico/felix/v2/no-region/host/n/workload/k8s/a%2Fb/endpoint/eth0",
        "/calico/felix/v1/host/n/endpoint/",
        "/calico/compaction/v1/trigger",
    ] {
        assert_eq!(parse(path), None, "{path}");
    }
}

#[test]
fn ranges_begin_where_other_clients_list() {
    let resources = |kind, namespace: Option<&str>, name_prefix: &str| KeyRange::Resources {
        kind,
        namespace: namespace.map(str::to_owned),
        name_prefix: name_prefix.to_owned(),
    };
    let affinities = |owner: Option<&str>, ip_version| KeyRange::BlockAffinities {
        affinity: AffinityType::Host,
        owner: owner.map(str::to_owned),
        ip_version,
    };
    let statuses = |region: Option<&str>, host: Option<&str>| KeyRange::WorkloadEndpointStatuses {
        region: region.map(str::to_owned),
        host: host.map(str::to_owned),
    };
    for (range, prefix) in [
        (KeyRange::all(Kind::IPPool), "/calico/resources/v3/projectcalico.org/ippools/"),
        (resources(Kind::IPPool, None, "a-"), "/calico/resources/v3/projectcalico.org/ippools/a-"),
        (KeyRange::all(Kind::NetworkSet), "/calico/resources/v3/projectcalico.org/networksets/"),
        (
            resources(Kind::NetworkSet, Some("prod"), ""),
            "/calico/resources/v3/projectcalico.org/networksets/prod/",
        ),
        (
            resources(Kind::WorkloadEndpoint, Some("prod"), "n1-"),
            "/calico/resources/v3/projectcalico.org/workloadendpoints/prod/n1-",
        ),
        (
            resources(Kind::WorkloadEndpoint, None, "n1-"),
            "/calico/resources/v3/projectcalico.org/workloadendpoints/",
        ),
        (KeyRange::Blocks { ip_version: None }, "/calico/ipam/v2/assignment/"),
        (KeyRange::Blocks { ip_version: Some(6) }, "/calico/ipam/v2/assignment/ipv6/"),
        (affinities(None, Some(4)), "/calico/ipam/v2/host/"),
        (affinities(Some("n1"), None), "/calico/ipam/v2/host/n1/"),
        (affinities(Some("n1"), Some(4)), "/calico/ipam/v2/host/n1/ipv4/block/"),
        (KeyRange::Handles, "/calico/ipam/v2/handle/"),
        (KeyRange::IpamConfig, "/calico/ipam/v2/config"),
        (KeyRange::FelixStatuses, "/calico/felix/v2/"),
        (statuses(None, Some("n1")), "/calico/felix/v2/"),
        (statuses(Some(""), None), "/calico/felix/v2/no-region/host/"),
        (statuses(Some("north"), Some("n1")), "/calico/felix/v2/region-north/host/n1/workload/"),
        (KeyRange::DhcpSubnets { region: None }, "/calico/dhcp/v2/"),
        (KeyRange::DhcpSubnets { region: Some(String::new()) }, "/calico/dhcp/v2/no-region/subnet/"),
        (KeyRange::DhcpSubnets { region: Some("north".to_owned()) }, "/calico/dhcp/v2/region-north/subnet/"),
        (KeyRange::LegacyDhcpSubnets, "/calico/dhcp/v1/subnet/"),
        (KeyRange::HostEndpointStatuses { host: None }, "/calico/felix/v1/host/"),
        (
            KeyRange::HostEndpointStatuses { host: Some("n1".to_owned()) },
            "/calico/felix/v1/host/n1/endpoint/",
        ),
    ] {
        assert_eq!(super::prefix(&range), prefix);
    }
}

fn part() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9._%-]{1,12}"
}

fn any_net() -> impl Strategy<Value = IpNet> {
    prop_oneof![
        (any::<[u8; 4]>(), 0u8..=32).prop_map(|(a, len)| IpNet::new(a.into(), len).unwrap().trunc()),
        (any::<[u8; 16]>(), 0u8..=128).prop_map(|(a, len)| IpNet::new(a.into(), len).unwrap().trunc()),
    ]
}

fn any_key() -> impl Strategy<Value = StoreKey> {
    let kind = proptest::sample::select(Kind::ALL);
    let affinity_type = prop_oneof![Just(AffinityType::Host), Just(AffinityType::Virtual)];
    let slashed = "[a-z/%2f5-]{1,12}";
    prop_oneof![
        (kind, part(), part())
            .prop_map(|(kind, namespace, name)| StoreKey::resource(kind, &namespace, &name)),
        any_net().prop_map(|cidr| StoreKey::Block { cidr }),
        (affinity_type, part(), any_net()).prop_map(|(affinity, owner, cidr)| StoreKey::BlockAffinity {
            affinity,
            owner,
            cidr
        }),
        "[^\u{0}]{1,20}".prop_map(|id| StoreKey::Handle { id }),
        part().prop_map(|host| StoreKey::IpamHost { host }),
        ("[a-z]{0,5}", part()).prop_map(|(region, host)| StoreKey::FelixStatus { region, host }),
        ("[a-z]{0,5}", part()).prop_map(|(region, host)| StoreKey::FelixLastStatus { region, host }),
        ("[a-z]{0,5}", part(), slashed, slashed, slashed).prop_map(
            |(region, host, orchestrator, workload, endpoint)| {
                let status = WorkloadStatusKey { region, host, orchestrator, workload, endpoint };
                StoreKey::WorkloadEndpointStatus(Box::new(status))
            }
        ),
        ("[a-z]{0,5}", part()).prop_map(|(region, id)| StoreKey::DhcpSubnet { region, id }),
        part().prop_map(|id| StoreKey::LegacyDhcpSubnet { id }),
        (part(), slashed).prop_map(|(host, endpoint)| StoreKey::HostEndpointStatus { host, endpoint }),
    ]
}

proptest! {
    #[test]
    fn a_key_reads_back_from_its_text(key in any_key()) {
        prop_assert_eq!(parse(&path(&key)), Some(key));
    }

    #[test]
    fn any_text_is_a_key_or_not(path in ".{0,60}", tail in "[a-z0-9/.%-]{0,40}") {
        for text in [path, format!("/calico/{tail}"), format!("{RESOURCES_PREFIX}{tail}"), format!("{IPAM_PREFIX}{tail}")] {
            if let Some(key) = parse(&text) {
                prop_assert_eq!(self::path(&key), text);
            }
        }
    }
}
