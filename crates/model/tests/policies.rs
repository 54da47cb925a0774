//! Arbitrary policies survive the conversion from text to types and back.

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use tortie_model::kinds::*;
use tortie_model::scalar::{CalicoFloat, Port, Protocol};
use tortie_model::{ObjectMeta, Resource, codec};

fn nets(v6: bool) -> impl Strategy<Value = Vec<String>> {
    let net = (any::<u32>(), 1..=32u8).prop_map(move |(bits, length)| {
        let address = std::net::Ipv4Addr::from(bits & (u32::MAX << (32 - length)));
        if v6 {
            let mapped = (u128::from(bits) << 96) & (u128::MAX << (128 - u32::from(length)));
            format!("{}/{length}", std::net::Ipv6Addr::from(mapped))
        } else {
            format!("{address}/{length}")
        }
    });
    vec(net, 0..3)
}

fn selector() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        Just("all()".to_owned()),
        "has\\([a-z]{1,8}\\)",
        "[a-z]{1,8} == '[ -&(-~]{0,8}'",
        "[a-z]{1,5} in \\{\"[a-z]{1,3}\", \"yes\"\\} \\|\\| !has\\(x/y\\)",
    ]
}

fn ports() -> impl Strategy<Value = Vec<Port>> {
    let port = prop_oneof![
        (1..=u16::MAX).prop_map(Port::Number),
        (1..100u16, 100..=u16::MAX).prop_map(|(first, last)| Port::Range(first, last)),
        "[a-z]{1,10}".prop_map(Port::Named),
    ];
    vec(port, 0..4)
}

fn entity(v6: bool, with_ports: bool) -> impl Strategy<Value = EntityRule> {
    let accounts = (vec("[a-z]{1,8}", 0..3), selector())
        .prop_map(|(names, selector)| ServiceAccountMatch { names, selector });
    let namespaces = prop_oneof![selector(), Just("global()".to_owned())];
    (nets(v6), selector(), namespaces, ports(), nets(v6), selector(), ports(), option::of(accounts)).prop_map(
        move |(
            nets,
            selector,
            namespace_selector,
            ports,
            not_nets,
            not_selector,
            not_ports,
            service_accounts,
        )| {
            EntityRule {
                nets,
                selector,
                namespace_selector,
                services: None,
                ports: if with_ports { ports } else { Vec::new() },
                not_nets,
                not_selector,
                not_ports: if with_ports { not_ports } else { Vec::new() },
                service_accounts,
            }
        },
    )
}

fn rule() -> impl Strategy<Value = Rule> {
    (any::<bool>(), any::<bool>()).prop_flat_map(|(v6, with_ports)| {
        let action =
            prop_oneof![Just(Action::Allow), Just(Action::Deny), Just(Action::Log), Just(Action::Pass)];
        let protocol = if with_ports {
            prop_oneof![Just(Protocol::from("TCP")), Just(Protocol::from("SCTP")), Just(Protocol::Number(17))]
                .boxed()
        } else {
            prop_oneof![Just(Protocol::from("UDPLite")), (2..=57u8).prop_map(Protocol::Number)].boxed()
        };
        let note = option::of(btree_map("[a-z]{1,8}", "\\PC{0,12}", 0..3));
        (action, any::<bool>(), protocol, entity(v6, with_ports), entity(v6, with_ports), note).prop_map(
            move |(action, versioned, protocol, source, destination, note)| Rule {
                action,
                ip_version: versioned.then_some(if v6 { 6 } else { 4 }),
                protocol: Some(protocol),
                not_icmp: versioned.then_some(ICMPFields { r#type: Some(3), code: None }),
                source,
                destination,
                metadata: note.map(|annotations| RuleMetadata { annotations }),
                ..Rule::default()
            },
        )
    })
}

fn order() -> impl Strategy<Value = Option<CalicoFloat>> {
    option::of(prop_oneof![(-1000..1000i32).prop_map(f64::from), -1e6..1e6f64])
        .prop_map(|order| order.map(CalicoFloat))
}

fn policy() -> impl Strategy<Value = GlobalNetworkPolicy> {
    let meta = (
        "[a-z]{1,10}(\\.[a-z]{1,5})?",
        btree_map("[a-z]{1,6}(/[a-z]{1,4})?", "[a-z0-9]{0,6}", 0..3),
        "\\PC{0,20}",
    )
        .prop_map(|(name, labels, note)| ObjectMeta {
            name,
            labels,
            annotations: [("note".to_owned(), note)].into(),
            ..ObjectMeta::default()
        });
    (meta, order(), vec(rule(), 0..4), vec(rule(), 0..4), selector(), selector(), any::<bool>()).prop_map(
        |(meta, order, ingress, egress, selector, namespace_selector, apply_on_forward)| {
            GlobalNetworkPolicy::new(
                meta,
                GlobalNetworkPolicySpec {
                    order,
                    ingress,
                    egress,
                    selector,
                    namespace_selector,
                    apply_on_forward,
                    ..GlobalNetworkPolicySpec::default()
                },
            )
        },
    )
}

proptest! {
    #[test]
    fn text_to_types_and_back(policy in policy()) {
        let mut resource = Resource::from(policy);
        resource.set_defaults();
        prop_assert_eq!(resource.validate(), Ok(()));

        let yaml = codec::to_yaml(&resource.to_value());
        let read = codec::documents(yaml.as_bytes()).map_err(|e| TestCaseError::fail(format!("{e}\n{yaml}")))?;
        prop_assert_eq!(read.len(), 1);
        let typed = Resource::from_user(read[0].clone()).map_err(|e| TestCaseError::fail(format!("{e}\n{yaml}")))?;
        prop_assert_eq!(&typed, &resource);

        let json = typed.to_value().to_string();
        prop_assert_eq!(&json, &resource.to_value().to_string());
        let stored = serde_json::from_str(&json).map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert_eq!(Resource::from_store(resource.kind(), stored), Ok(resource));
    }

    /// Arbitrary field values are decoded or rejected, and decoded ones can be validated and encoded.
    #[test]
    fn any_tree_is_read_or_refused(spec in tree()) {
        for kind in ["GlobalNetworkPolicy", "StagedKubernetesNetworkPolicy", "Tier", "Profile", "NetworkSet"] {
            let value = serde_json::json!({"kind": kind, "apiVersion": "projectcalico.org/v3", "metadata": {"name": "x"}, "spec": spec});
            if let Ok(mut resource) = Resource::from_user(value.clone()) {
                resource.set_defaults();
                let _ = resource.validate();
                prop_assert_eq!(Resource::from_user(resource.to_value()), Ok(resource));
            }
            if let Ok(resource) = Resource::from_store(tortie_model::resource::kind_of(&value).unwrap(), value) {
                prop_assert_eq!(Resource::from_store(resource.kind(), resource.to_value()), Ok(resource));
            }
        }
    }
}

/// Generates trees whose keys are often field names of policies.
fn tree() -> impl Strategy<Value = serde_json::Value> {
    use serde_json::Value;
    let key = prop::sample::select(vec![
        "ingress",
        "egress",
        "action",
        "source",
        "destination",
        "nets",
        "ports",
        "selector",
        "types",
        "order",
        "icmp",
        "type",
        "code",
        "protocol",
        "http",
        "paths",
        "exact",
        "metadata",
        "annotations",
        "podSelector",
        "matchLabels",
        "from",
        "ipBlock",
        "cidr",
        "defaultAction",
        "labelsToApply",
        "else",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u16>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop::sample::select(vec!["", "Allow", "Ingress", "10.0.0.0/8", "80", "1:2", "TCP", "all()"])
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 60, 6, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((key.clone(), inner), 0..6).prop_map(|fields| Value::Object(
                fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
            )),
        ]
    })
}
