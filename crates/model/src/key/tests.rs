use super::*;

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
fn keys_stay_small() {
    assert!(size_of::<StoreKey>() <= 56, "{} bytes", size_of::<StoreKey>());
}

#[test]
fn ranges_are_named_for_people() {
    let resources = |kind, namespace: Option<&str>, name_prefix: &str| KeyRange::Resources {
        kind,
        namespace: namespace.map(str::to_owned),
        name_prefix: name_prefix.to_owned(),
    };
    let affinities =
        |owner, ip_version| KeyRange::BlockAffinities { affinity: AffinityType::Host, owner, ip_version };
    for (range, shown) in [
        (KeyRange::all(Kind::IPPool), "IPPool"),
        (resources(Kind::NetworkSet, Some("prod"), ""), "NetworkSet (namespace prod)"),
        (resources(Kind::NetworkSet, Some("prod"), "a"), "NetworkSet (namespace prod, a*)"),
        (KeyRange::Blocks { ip_version: Some(6) }, "IPAM blocks (IPv6)"),
        (affinities(None, None), "IPAM block affinities (host *)"),
        (affinities(Some("n1".to_owned()), Some(4)), "IPAM block affinities (host n1, IPv4)"),
        (KeyRange::Handles, "IPAM handles"),
    ] {
        assert_eq!(range.to_string(), shown);
    }
}

#[test]
fn ranges_tell_their_keys_from_neighbours() {
    let in_prod = KeyRange::Resources {
        kind: Kind::NetworkSet,
        namespace: Some("prod".into()),
        name_prefix: "a".into(),
    };
    assert!(in_prod.contains(&StoreKey::resource(Kind::NetworkSet, "prod", "ab")));
    assert!(!in_prod.contains(&StoreKey::resource(Kind::NetworkSet, "prod", "b")));
    assert!(!in_prod.contains(&StoreKey::resource(Kind::NetworkSet, "production", "ab")));
    assert!(!in_prod.contains(&StoreKey::resource(Kind::NetworkPolicy, "prod", "ab")));
    assert!(KeyRange::all(Kind::NetworkSet).contains(&StoreKey::resource(Kind::NetworkSet, "any", "ab")));

    let hosts = KeyRange::BlockAffinities { affinity: AffinityType::Host, owner: None, ip_version: Some(4) };
    assert!(hosts.contains(&affinity(AffinityType::Host, "n1", "10.65.3.0/26")));
    assert!(!hosts.contains(&affinity(AffinityType::Host, "n1", "fd00:65::40/122")));
    assert!(!hosts.contains(&affinity(AffinityType::Virtual, "n1", "10.65.3.0/26")));
    assert!(!hosts.contains(&StoreKey::IpamHost { host: "n1".into() }));

    let statuses = KeyRange::WorkloadEndpointStatuses { region: None, host: Some("rack1-n7".into()) };
    assert!(statuses.contains(&status("north", "prod/web-0")));
    assert!(!statuses.contains(&StoreKey::FelixStatus { region: String::new(), host: "rack1-n7".into() }));
}
