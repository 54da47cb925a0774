use super::*;

fn core(annotations: Json) -> CoreNode {
    serde_json::from_value(json!({
        "metadata": {"name": "n1", "uid": "u1", "labels": {"zone": "a", "kubernetes.io/hostname": "n1"},
            "annotations": annotations},
        "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24", "fd00:244:1::/64"], "taints": []},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"},
            {"type": "Hostname", "address": "n1"}, {"type": "ExternalIP", "address": "203.0.113.1"}],
            "images": [{"names": ["x"]}]},
    }))
    .unwrap()
}

fn full() -> Json {
    json!({
        "projectcalico.org/IPv4Address": "192.0.2.1/24",
        "projectcalico.org/IPv6Address": "fd00::1/64",
        "projectcalico.org/ASNumber": "64513",
        "projectcalico.org/RouteReflectorClusterID": "244.0.0.1",
        "projectcalico.org/IPv4IPIPTunnelAddr": "10.65.3.1",
        "projectcalico.org/IPv4VXLANTunnelAddr": "10.65.3.2",
        "projectcalico.org/VXLANTunnelMACAddr": "66:aa:bb:cc:dd:ee",
        "projectcalico.org/IPv6VXLANTunnelAddr": "fd00:65::2",
        "projectcalico.org/VXLANTunnelMACAddrV6": "66:aa:bb:cc:dd:ef",
        "projectcalico.org/IPv4WireguardInterfaceAddr": "10.65.3.3",
        "projectcalico.org/IPv6WireguardInterfaceAddr": "fd00:65::3",
        "projectcalico.org/WireguardPublicKey": "key4",
        "projectcalico.org/WireguardPublicKeyV6": "key6",
        "projectcalico.org/Interfaces": r#"[{"name":"eth0","addresses":["192.0.2.1"]}]"#,
        "projectcalico.org/labels": r#"{"rack":"7"}"#,
        "projectcalico.org/annotations": r#"{"note":"x"}"#,
    })
}

/// Applies a merge patch like kube-apiserver.
fn patched(mut core: CoreNode, patch: &Json) -> CoreNode {
    for (key, value) in patch["metadata"]["annotations"].as_object().unwrap() {
        match value.as_str() {
            Some(value) => core.metadata.annotations.insert(key.clone(), value.to_owned()),
            None => core.metadata.annotations.remove(key),
        };
    }
    core
}

#[test]
fn a_node_is_read_from_its_annotations() {
    let (key, node) = read(&core(full()), false);
    assert_eq!(key, StoreKey::resource(Kind::Node, "", "n1"));
    let bgp = node.spec.bgp.as_ref().unwrap();
    assert_eq!((bgp.ipv4_address.as_str(), bgp.as_number.map(|n| n.0)), ("192.0.2.1/24", Some(64513)));
    assert_eq!(node.spec.ipv4_vxlan_tunnel_addr, "10.65.3.2");
    assert_eq!(node.spec.wireguard.as_ref().unwrap().interface_ipv6_address, "fd00:65::3");
    assert_eq!(node.status.wireguard_public_key, "key4");
    assert_eq!(node.status.pod_cidrs, ["10.244.1.0/24", "fd00:244:1::/64"]);
    assert_eq!(node.spec.interfaces[0].name, "eth0");
    let addresses: Vec<_> =
        node.spec.addresses.iter().map(|address| format!("{} {}", address.type_, address.address)).collect();
    assert_eq!(
        addresses,
        [
            "CalicoNodeIP 192.0.2.1/24",
            "CalicoNodeIP fd00::1/64",
            "InternalIP 192.0.2.1",
            "ExternalIP 203.0.113.1"
        ]
    );
    assert_eq!(node.spec.orch_refs, [OrchRef { node_name: "n1".into(), orchestrator: "k8s".into() }]);
    assert_eq!(node.metadata.labels["rack"], "7");
    assert_eq!(node.metadata.labels["zone"], "a");
    assert_eq!(node.metadata.annotations["note"], "x");
    assert_eq!(node.metadata.annotations.len(), 2);
}

#[test]
fn what_is_written_reads_back_the_same() {
    for annotations in [full(), json!({})] {
        let before = core(annotations);
        let (_, node) = read(&before, false);
        let after = patched(before.clone(), &patch(&node));
        assert_eq!(after, before);
        // Apply the patch to a node with other annotations.
        let (_, again) =
            read(&patched(core(json!({"projectcalico.org/ASNumber": "1"})), &patch(&node)), false);
        assert_eq!(again, node);
    }
}

#[test]
fn labels_of_kubernetes_are_not_made_calicos() {
    let (_, mut node) = read(&core(full()), false);
    node.metadata.labels.insert("added".into(), "1".into());
    let patch = patch(&node);
    let annotations = &patch["metadata"]["annotations"];
    assert_eq!(annotations["projectcalico.org/labels"], r#"{"added":"1","rack":"7"}"#);
    assert_eq!(annotations.get(KUBE_LABELS_ANNOTATION), None);
}

#[test]
fn annotations_that_make_no_sense_are_passed_over() {
    let (_, node) = read(
        &core(json!({
            "projectcalico.org/IPv4Address": "nonsense",
            "projectcalico.org/ASNumber": "many",
            "projectcalico.org/Interfaces": "{",
            "projectcalico.org/labels": "7",
            "projectcalico.org/IPv6Address": "fd00::1/64",
        })),
        false,
    );
    let bgp = node.spec.bgp.unwrap();
    assert_eq!((bgp.ipv4_address.as_str(), bgp.ipv6_address.as_str()), ("", "fd00::1/64"));
    assert_eq!(bgp.as_number, None);
    assert!(node.spec.interfaces.is_empty());
    assert_eq!(node.metadata.labels.len(), 2);
}

#[test]
fn tunnels_of_pod_ranges_have_their_first_address() {
    let (_, node) = read(&core(json!({"projectcalico.org/WireguardPublicKey": "key"})), true);
    assert_eq!(node.spec.bgp.unwrap().ipv4_ipip_tunnel_addr, "10.244.1.1");
    assert_eq!(node.spec.wireguard.unwrap().interface_ipv4_address, "10.244.1.1");
}
