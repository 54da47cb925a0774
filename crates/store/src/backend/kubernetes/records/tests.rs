use super::*;
use tortie_model::Resource;
use tortie_model::ipam::{AddressBlock, AddressHandle, AffinityState, IpamConfig};

const BOTH_API_GROUPS: [CalicoApiGroup; 2] = [CalicoApiGroup::V1, CalicoApiGroup::V3];

fn cidr() -> IpNet {
    "10.65.3.8/29".parse().unwrap()
}

fn block() -> AddressBlock {
    serde_json::from_str(concat!(
        r#"{"cidr":"10.65.3.8/29","affinity":"host:rack1-n7","affinity_claim_time":"2026-03-01T10:20:30Z","#,
        r#""allocations":[0,null,1,null,null,null,null,null],"unallocated":[4,5,6,7,1,3],"attributes":["#,
        r#"{"handle_id":"net.6F1d","secondary":{"pod":"web-0"}},{"releasedAt":"2026-03-01T10:20:31Z"}],"#,
        r#""sequenceNumber":17,"sequenceNumberForAllocation":{"0":12},"deleted":false}"#
    ))
    .unwrap()
}

fn records() -> Vec<(StoreKey, StoreValue)> {
    let claim = BlockAffinity { state: AffinityState::Pending, ..Default::default() };
    let affinity =
        |affinity, owner: &str| StoreKey::BlockAffinity { affinity, owner: owner.into(), cidr: cidr() };
    let handle = AddressHandle { block: [("10.65.3.8/29".to_owned(), 2)].into(), ..Default::default() };
    let settings = IpamConfig { strict_affinity: true, max_blocks_per_host: 20, ..Default::default() };
    let fresh = AddressBlock { affinity: None, affinity_claim_time: None, attributes: Vec::new(), ..block() };
    vec![
        (StoreKey::Block { cidr: cidr() }, StoreValue::Block(block())),
        (StoreKey::Block { cidr: cidr() }, StoreValue::Block(fresh)),
        (affinity(AffinityType::Host, "rack1-n7"), StoreValue::BlockAffinity(claim.clone())),
        (affinity(AffinityType::Virtual, "load-balancer"), StoreValue::BlockAffinity(claim)),
        (StoreKey::Handle { id: "net.6F1d".into() }, StoreValue::Handle(handle)),
        (StoreKey::IpamConfig, StoreValue::IpamConfig(settings)),
        (
            StoreKey::IpamConfig,
            StoreValue::IpamConfig(IpamConfig { auto_allocate_blocks: false, ..Default::default() }),
        ),
    ]
}

#[test]
fn records_read_back_as_they_were_written() {
    for group in BOTH_API_GROUPS {
        for (key, value) in records() {
            let (kind, name) = place(&key).unwrap();
            let stored = write(group, &key, &value).unwrap();
            assert_eq!(stored["metadata"]["name"], name);
            assert_eq!(stored["kind"], group.kind_name(kind));
            assert_eq!(read(kind, &stored), StoredIpamRecord::Present(key, Ok(value)), "{stored}");
        }
    }
}

/// Decodes the same objects as the resources that users see.
#[test]
fn records_are_resources_of_their_kinds() {
    for group in BOTH_API_GROUPS {
        for (key, value) in records() {
            let (kind, name) = place(&key).unwrap();
            let stored = write(group, &key, &value).unwrap();
            let (_, resource) = super::super::object::read(group, kind, stored.clone());
            let Ok(StoreValue::Resource(resource)) = resource else { panic!("{resource:?}") };
            resource.validate().unwrap_or_else(|error| panic!("{error}: {stored}"));
            assert_eq!(resource.metadata().name, name);
            // The object has no fields that the kind does not define.
            let mut shown = resource.to_value();
            shown["metadata"] = json!({ "name": name });
            Resource::from_user(shown).unwrap_or_else(|error| panic!("{error}: {stored}"));
        }
    }
}

#[test]
fn a_block_looks_as_other_clients_write_it() {
    let stored =
        write(CalicoApiGroup::V1, &StoreKey::Block { cidr: cidr() }, &StoreValue::Block(block())).unwrap();
    let spec = &stored["spec"];
    assert_eq!(spec["affinityClaimTime"], "2026-03-01T10:20:30Z");
    assert_eq!(spec["attributes"][0]["handle_id"], "net.6F1d");
    assert_eq!(spec["strictAffinity"], false);
    assert_eq!(spec["allocations"][1], Json::Null);
    assert_eq!(spec.get("affinity_claim_time"), None);
}

#[test]
fn affinities_carry_the_labels_they_are_selected_by() {
    let key = StoreKey::BlockAffinity { affinity: AffinityType::Host, owner: "n1".into(), cidr: cidr() };
    let value = StoreValue::BlockAffinity(BlockAffinity::default());
    let stored = write(CalicoApiGroup::V1, &key, &value).unwrap();
    let labels = &stored["metadata"]["labels"];
    assert_eq!(labels[names::HOSTNAME_LABEL], names::hostname_hash("n1"));
    assert_eq!(labels[names::AFFINITY_TYPE_LABEL], "host");
    assert_eq!(labels[names::IP_VERSION_LABEL], "4");
    assert_eq!(stored["spec"]["deleted"], "false");
    assert_eq!(write(CalicoApiGroup::V3, &key, &value).unwrap()["spec"]["deleted"], false);
}

#[test]
fn what_is_marked_as_deleted_is_recognised() {
    for group in BOTH_API_GROUPS {
        for (key, value) in records() {
            let (kind, _) = place(&key).unwrap();
            if kind != Kind::IPAMConfiguration {
                let stored = write(group, &key, &deleted(&value)).unwrap();
                assert_eq!(read(kind, &stored), StoredIpamRecord::Deleted(key));
            }
        }
    }
}

#[test]
fn what_makes_no_sense_is_named() {
    assert!(
        matches!(read(Kind::IPAMBlock, &json!({"spec": {"cidr": "x"}})), StoredIpamRecord::Nameless(reason) if reason.contains("'x'"))
    );
    let strange = json!({"spec": {"cidr": "10.0.0.0/26", "type": "other"}});
    assert!(
        matches!(read(Kind::BlockAffinity, &strange), StoredIpamRecord::Nameless(reason) if reason.contains("'other'"))
    );
    let garbled = json!({"spec": {"cidr": "10.0.0.0/26", "allocations": "none"}});
    assert!(matches!(read(Kind::IPAMBlock, &garbled), StoredIpamRecord::Present(_, Err(_))));
    let old =
        json!({"spec": {"cidr": "10.0.0.0/26", "node": "n1", "state": "confirmed", "deleted": "false"}});
    assert!(matches!(
        read(Kind::BlockAffinity, &old),
        StoredIpamRecord::Present(StoreKey::BlockAffinity { affinity: AffinityType::Host, .. }, Ok(_))
    ));
    assert_eq!(write(CalicoApiGroup::V1, &StoreKey::IpamConfig, &StoreValue::Block(block())), None);
}
