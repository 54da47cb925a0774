//! Field numbers of the protocol. The messages are written byte by byte with Calico's numbers, so that a wrong number in
//! the definition of the protocol cannot cancel out between our encoder and our decoder.

// Test helpers may panic like tests.
#![allow(clippy::unwrap_used, clippy::panic)]

use prost::Message;
use tortie_policysync::proto::{self, ToDataplane, http_match::path_match::PathMatch, to_dataplane::Payload};

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// Writes a field with a number as its value.
fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

/// Writes a field with a text or a message as its value.
fn bytes(field: u64, value: impl AsRef<[u8]>) -> Vec<u8> {
    let value = value.as_ref();
    [varint(field << 3 | 2), varint(value.len() as u64), value.to_vec()].concat()
}

fn texts(fields: &[u64]) -> Vec<u8> {
    fields.iter().flat_map(|field| bytes(*field, format!("v{field}"))).collect()
}

fn payload(field: u64, message: &[u8]) -> Payload {
    let message = [number(15, 300), bytes(field, message)].concat();
    let decoded = ToDataplane::decode(message.as_slice()).unwrap();
    assert_eq!(decoded.sequence_number, 300);
    decoded.payload.unwrap_or_else(|| panic!("the field {field} is not known"))
}

/// A policy ID, and a key and a value in a map of labels.
fn policy_id() -> Vec<u8> {
    texts(&[2, 3, 4])
}

fn label() -> Vec<u8> {
    [bytes(1, "key"), bytes(2, "value")].concat()
}

#[test]
fn payloads_have_the_numbers_of_calico() {
    assert!(matches!(payload(1, &[]), Payload::InSync(_)));
    let Payload::IpsetUpdate(set) = payload(2, &[texts(&[1, 2]), number(3, 2)].concat()) else { panic!() };
    assert_eq!((set.id.as_str(), set.members, set.r#type), ("v1", vec!["v2".to_owned()], 2));
    let Payload::IpsetDeltaUpdate(delta) = payload(3, &texts(&[1, 2, 3])) else { panic!() };
    assert_eq!((delta.added_members, delta.removed_members), (vec!["v2".to_owned()], vec!["v3".to_owned()]));
    let Payload::IpsetRemove(removal) = payload(4, &texts(&[1])) else { panic!() };
    assert_eq!((delta.id, removal.id), ("v1".to_owned(), "v1".to_owned()));

    let rule = |action: &str| bytes(1, action);
    let rules = [bytes(1, rule("in")), bytes(2, rule("out"))].concat();
    let profile = [bytes(1, texts(&[1])), bytes(2, &rules)].concat();
    let Payload::ActiveProfileUpdate(update) = payload(5, &profile) else { panic!() };
    let profile = update.profile.unwrap();
    assert_eq!(update.id.unwrap().name, "v1");
    assert_eq!((profile.inbound_rules[0].action.as_str(), &*profile.outbound_rules[0].action), ("in", "out"));
    let Payload::ActiveProfileRemove(removal) = payload(6, &bytes(1, texts(&[1]))) else { panic!() };
    assert_eq!(removal.id.unwrap().name, "v1");

    let policy = [rules, number(3, 1), number(4, 1), texts(&[5, 6, 7, 8])].concat();
    let update = [bytes(1, policy_id()), bytes(2, policy)].concat();
    let Payload::ActivePolicyUpdate(update) = payload(7, &update) else { panic!() };
    let (id, policy) = (update.id.unwrap(), update.policy.unwrap());
    assert_eq!([&*id.name, &id.namespace, &id.kind], ["v2", "v3", "v4"]);
    assert_eq!([&*policy.namespace, &policy.original_selector, &policy.tier], ["v5", "v6", "v8"]);
    assert!(policy.untracked && policy.pre_dnat && policy.perf_hints == ["v7"]);
    assert_eq!((policy.inbound_rules.len(), policy.outbound_rules.len()), (1, 1));
    let Payload::ActivePolicyRemove(removal) = payload(8, &bytes(1, policy_id())) else { panic!() };
    assert_eq!(removal.id.unwrap(), id);
}

#[test]
fn endpoints_and_labels_have_the_numbers_of_calico() {
    let tier = [bytes(1, "t"), bytes(2, policy_id()), bytes(3, texts(&[2])), bytes(4, "Pass")].concat();
    let endpoint = [texts(&[1, 2, 3, 4, 5, 6]), bytes(7, tier), number(16, 1)].concat();
    let update = [bytes(1, texts(&[1, 2, 3])), bytes(5, endpoint)].concat();
    let Payload::WorkloadEndpointUpdate(update) = payload(11, &update) else { panic!() };
    let (id, endpoint) = (update.id.unwrap(), update.endpoint.unwrap());
    assert_eq!([&*id.orchestrator_id, &id.workload_id, &id.endpoint_id], ["v1", "v2", "v3"]);
    assert_eq!([&*endpoint.state, &endpoint.name, &endpoint.mac], ["v1", "v2", "v3"]);
    assert_eq!(
        [&endpoint.profile_ids[..], &endpoint.ipv4_nets, &endpoint.ipv6_nets].concat(),
        ["v4", "v5", "v6"]
    );
    assert!(endpoint.is_istio_ambient);
    let tier = &endpoint.tiers[0];
    assert_eq!([&*tier.name, &tier.default_action], ["t", "Pass"]);
    assert_eq!((&*tier.ingress_policies[0].kind, &*tier.egress_policies[0].name), ("v4", "v2"));
    let Payload::WorkloadEndpointRemove(removal) = payload(12, &bytes(1, texts(&[1, 2, 3]))) else {
        panic!()
    };
    assert_eq!(removal.id.unwrap(), id);

    let account = [bytes(1, texts(&[1, 2])), bytes(2, label())].concat();
    let Payload::ServiceAccountUpdate(update) = payload(19, &account) else { panic!() };
    let id = update.id.unwrap();
    assert_eq!([&*id.namespace, &id.name, &update.labels["key"]], ["v1", "v2", "value"]);
    let Payload::ServiceAccountRemove(removal) = payload(20, &bytes(1, texts(&[1, 2]))) else { panic!() };
    assert_eq!(removal.id.unwrap(), id);
    let namespace = [bytes(1, texts(&[1])), bytes(2, label())].concat();
    let Payload::NamespaceUpdate(update) = payload(21, &namespace) else { panic!() };
    assert_eq!([&*update.id.unwrap().name, &update.labels["key"]], ["v1", "value"]);
    let Payload::NamespaceRemove(removal) = payload(22, &bytes(1, texts(&[1]))) else { panic!() };
    assert_eq!(removal.id.unwrap().name, "v1");
}

#[test]
fn rules_have_the_numbers_of_calico() {
    let range = |first: u64| [number(1, first), number(2, first + 1)].concat();
    let code = |first: u64| [number(1, first), number(2, first + 1)].concat();
    let lists = [4, 6, 10, 11, 12, 13, 15, 103, 105, 109, 110, 112, 113];
    let single = [1, 114, 115, 116, 117, 118, 119, 130, 131, 132, 133, 201];
    let path = |field, text: &str| bytes(2, bytes(field, text));
    let message = [
        texts(&single),
        texts(&lists),
        number(2, 6),
        bytes(3, number(1, 6)),
        bytes(5, range(5)),
        bytes(7, range(7)),
        bytes(9, code(9)),
        bytes(102, bytes(2, "udp")),
        bytes(104, range(104)),
        bytes(106, range(106)),
        bytes(108, code(108)),
        bytes(120, texts(&[1, 2])),
        bytes(121, texts(&[2])),
        bytes(122, [bytes(1, "GET"), path(1, "/exact"), path(2, "/prefix")].concat()),
        bytes(123, bytes(1, label())),
    ]
    .concat();
    let rule = proto::Rule::decode(message.as_slice()).unwrap();
    let decoded_lists = [
        &rule.src_net,
        &rule.dst_net,
        &rule.src_ip_set_ids,
        &rule.dst_ip_set_ids,
        &rule.src_named_port_ip_set_ids,
        &rule.dst_named_port_ip_set_ids,
        &rule.dst_ip_port_set_ids,
        &rule.not_src_net,
        &rule.not_dst_net,
        &rule.not_src_ip_set_ids,
        &rule.not_dst_ip_set_ids,
        &rule.not_src_named_port_ip_set_ids,
        &rule.not_dst_named_port_ip_set_ids,
    ];
    for (field, decoded) in lists.iter().zip(decoded_lists) {
        assert_eq!(*decoded, [format!("v{field}")]);
    }
    let decoded_single = [
        &rule.action,
        &rule.original_src_selector,
        &rule.original_dst_selector,
        &rule.original_src_namespace_selector,
        &rule.original_dst_namespace_selector,
        &rule.original_not_src_selector,
        &rule.original_not_dst_selector,
        &rule.original_dst_service,
        &rule.original_dst_service_namespace,
        &rule.original_src_service,
        &rule.original_src_service_namespace,
        &rule.rule_id,
    ];
    for (field, decoded) in single.iter().zip(decoded_single) {
        assert_eq!(*decoded, format!("v{field}"));
    }
    let ports = [&rule.src_ports, &rule.dst_ports, &rule.not_src_ports, &rule.not_dst_ports];
    assert_eq!(ports.map(|ports| (ports[0].first, ports[0].last)), [(5, 6), (7, 8), (104, 105), (106, 107)]);
    assert_eq!(rule.ip_version, 6);
    let protocol = |value| Some(proto::Protocol { number_or_name: Some(value) });
    assert_eq!(rule.protocol, protocol(proto::protocol::NumberOrName::Number(6)));
    assert_eq!(rule.not_protocol, protocol(proto::protocol::NumberOrName::Name("udp".to_owned())));
    let icmp = |r#type, code| proto::IcmpTypeAndCode { r#type, code };
    assert_eq!(rule.icmp, Some(proto::rule::Icmp::IcmpTypeCode(icmp(9, 10))));
    assert_eq!(rule.not_icmp, Some(proto::rule::NotIcmp::NotIcmpTypeCode(icmp(108, 109))));
    let accounts = [rule.src_service_account_match.unwrap(), rule.dst_service_account_match.unwrap()];
    assert_eq!((&*accounts[0].selector, &accounts[0].names[..]), ("v1", &["v2".to_owned()][..]));
    assert_eq!((&*accounts[1].selector, &accounts[1].names[..]), ("", &["v2".to_owned()][..]));
    let http = rule.http_match.unwrap();
    let paths: Vec<_> = http.paths.into_iter().map(|path| path.path_match.unwrap()).collect();
    assert_eq!(paths, [PathMatch::Exact("/exact".to_owned()), PathMatch::Prefix("/prefix".to_owned())]);
    assert_eq!(http.methods, ["GET"]);
    assert_eq!(rule.metadata.unwrap().annotations["key"], "value");
    let types = [number(8, 8), number(107, 107)].concat();
    let rule = proto::Rule::decode(types.as_slice()).unwrap();
    assert_eq!(rule.icmp, Some(proto::rule::Icmp::IcmpType(8)));
    assert_eq!(rule.not_icmp, Some(proto::rule::NotIcmp::NotIcmpType(107)));
}

#[test]
fn reports_have_the_numbers_of_calico() {
    let statistic = [number(1, 1), number(2, 1), number(3, 1), number(4, 2), number(5, 9)].concat();
    let report = [
        texts(&[1, 2]),
        number(3, 3),
        number(4, 4),
        bytes(5, bytes(2, "tcp")),
        bytes(6, statistic),
        number(8, 8),
    ]
    .concat();
    let report = proto::DataplaneStats::decode(report.as_slice()).unwrap();
    assert_eq!([&*report.src_ip, &report.dst_ip], ["v1", "v2"]);
    assert_eq!([report.src_port, report.dst_port, report.action], [3, 4, 8]);
    let statistic = &report.stats[0];
    assert_eq!([statistic.direction, statistic.relativity, statistic.kind, statistic.action], [1, 1, 1, 2]);
    assert_eq!((statistic.value, report.protocol.is_some()), (9, true));
    assert_eq!(proto::ReportResult { successful: true }.encode_to_vec(), number(1, 1));
    assert!(proto::SyncRequest {}.encode_to_vec().is_empty());
}
