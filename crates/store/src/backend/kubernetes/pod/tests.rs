use super::*;

fn pod(extra: Json) -> CorePod {
    let mut object = json!({
        "metadata": {"name": "web-0", "namespace": "prod", "uid": "u1", "resourceVersion": "7",
            "creationTimestamp": "2026-03-01T10:20:30Z", "labels": {"app": "web"},
            "annotations": {CONTAINER_ID_ANNOTATION: "c1", NETWORK_STATUS_ANNOTATION: "[]", "other": "x"}},
        "spec": {"nodeName": "n-1", "serviceAccountName": "sa", "volumes": [{"name": "v"}],
            "containers": [{"image": "i", "ports": [
                {"name": "http", "containerPort": 80},
                {"containerPort": 81},
                {"containerPort": 53, "hostPort": 5353, "hostIP": "192.0.2.1", "protocol": "UDP"},
                {"name": "odd", "containerPort": 9, "protocol": "DCCP"}]}],
            "initContainers": [{"ports": [{"name": "init", "containerPort": 82, "protocol": "SCTP"}]}]},
        "status": {"phase": "Running", "podIP": "10.65.3.9", "podIPs": [{"ip": "10.65.3.9"}, {"ip": "fd00::9"}]},
    });
    merge(&mut object, extra);
    serde_json::from_value(object).unwrap()
}

fn merge(into: &mut Json, from: Json) {
    match (into, from) {
        (Json::Object(into), Json::Object(from)) => {
            for (key, value) in from {
                if value.is_null() {
                    into.shift_remove(&key);
                } else {
                    merge(into.entry(key).or_insert(Json::Null), value);
                }
            }
        }
        (into, from) => *into = from,
    }
}

fn converted(extra: Json) -> WorkloadEndpoint {
    endpoint(&pod(extra), "cali").unwrap().1.unwrap()
}

#[test]
fn a_pod_is_an_endpoint() {
    let (key, endpoint) = endpoint(&pod(json!({})), "cali").unwrap();
    assert_eq!(key, StoreKey::resource(Kind::WorkloadEndpoint, "prod", "n--1-k8s-web--0-eth0"));
    let endpoint = endpoint.unwrap();
    assert_eq!(endpoint.metadata.name, "n--1-k8s-web--0-eth0");
    assert_eq!(endpoint.metadata.uid, "u1");
    assert_eq!(endpoint.metadata.annotations.keys().collect::<Vec<_>>(), [NETWORK_STATUS_ANNOTATION]);
    let labels: Vec<_> = endpoint.metadata.labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(
        labels,
        [
            "app=web",
            "projectcalico.org/namespace=prod",
            "projectcalico.org/orchestrator=k8s",
            "projectcalico.org/serviceaccount=sa"
        ]
    );
    let spec = &endpoint.spec;
    assert_eq!(spec.ip_networks, ["10.65.3.9/32", "fd00::9/128"]);
    assert_eq!(spec.profiles, ["kns.prod", "ksa.prod.sa"]);
    assert_eq!(spec.container_id, "c1");
    assert_eq!(spec.interface_name, interface_name("cali", "prod", "web-0"));
    assert_eq!(spec.interface_name.len(), 15);
    let ports: Vec<_> =
        spec.ports.iter().map(|port| (port.name.as_str(), port.port, port.host_port)).collect();
    assert_eq!(ports, [("http", 80, 0), ("", 53, 5353), ("init", 82, 0)]);
    tortie_model::Resource::from(endpoint).validate().unwrap();
}

#[test]
fn interfaces_are_named_as_the_reference_names_them() {
    // echo -n default.pod-1 | sha1sum
    assert_eq!(interface_name("cali", "default", "pod-1"), "cali83dbd022cd5");
}

#[test]
fn pods_without_a_network_of_ours_are_none() {
    assert!(endpoint(&pod(json!({"spec": {"hostNetwork": true}})), "cali").is_none());
    assert!(endpoint(&pod(json!({"spec": {"nodeName": ""}})), "cali").is_none());
}

#[test]
fn addresses_come_from_the_best_source() {
    let annotated = |annotations: Json| {
        converted(
            json!({"metadata": {"annotations": annotations}, "status": {"podIP": null, "podIPs": null}}),
        )
        .spec
        .ip_networks
    };
    let only_one = converted(json!({"status": {"podIPs": null}})).spec.ip_networks;
    assert_eq!(only_one, ["10.65.3.9/32"]);
    assert_eq!(
        annotated(json!({POD_IPS_ANNOTATION: "10.0.0.1/32,fd00::1/128", POD_IP_ANNOTATION: "10.0.0.2/32"})),
        ["10.0.0.1/32", "fd00::1/128"]
    );
    assert_eq!(annotated(json!({POD_IP_ANNOTATION: "10.0.0.2/32"})), ["10.0.0.2/32"]);
    assert_eq!(
        annotated(json!({AWS_POD_IPS_ANNOTATION: "10.0.0.3, 10.0.0.4"})),
        ["10.0.0.3/32", "10.0.0.4/32"]
    );
    assert!(annotated(json!({})).is_empty());
    let wrong = endpoint(&pod(json!({"status": {"podIPs": [{"ip": "nonsense"}]}})), "cali").unwrap().1;
    assert_eq!(wrong.unwrap_err().to_string(), "status.podIPs = 'nonsense' is not an address");
}

#[test]
fn finished_pods_have_no_addresses() {
    for extra in [
        json!({"status": {"phase": "Failed"}}),
        json!({"status": {"phase": "Succeeded"}}),
        json!({"metadata": {"deletionTimestamp": "2026-03-01T10:20:30Z", "annotations": {POD_IP_ANNOTATION: ""}}}),
    ] {
        assert!(converted(extra).spec.ip_networks.is_empty());
    }
    for extra in [
        json!({"metadata": {"deletionTimestamp": "2026-03-01T10:20:30Z"}}),
        json!({"metadata": {"annotations": {POD_IP_ANNOTATION: ""}}}),
    ] {
        assert_eq!(converted(extra).spec.ip_networks.len(), 2, "it may still have traffic");
    }
}

#[test]
fn annotations_of_people() {
    let asked = converted(json!({"metadata": {"annotations": {
        FLOATING_IPS_ANNOTATION: r#"["192.0.2.7", "fd99::7"]"#,
        SOURCE_PREFIXES_ANNOTATION: r#"["10.1.2.3/16", "nonsense"]"#,
        "qos.projectcalico.org/ingressBandwidth": "1M"}}}));
    let nats: Vec<_> =
        asked.spec.ip_nats.iter().map(|nat| format!("{} {}", nat.external_ip, nat.internal_ip)).collect();
    assert_eq!(nats, ["192.0.2.7 10.65.3.9", "fd99::7 fd00::9"]);
    assert_eq!(asked.spec.allow_spoofed_source_prefixes, ["10.1.0.0/16"]);
    assert_eq!(asked.spec.qos_controls.unwrap().ingress_bandwidth, 1_000_000);
    let single = converted(
        json!({"metadata": {"annotations": {FLOATING_IPS_ANNOTATION: r#"["fd99::7"]"#}}, "status": {"podIPs": null}}),
    );
    assert!(single.spec.ip_nats.is_empty(), "no address of that family");
    let garbled =
        endpoint(&pod(json!({"metadata": {"annotations": {FLOATING_IPS_ANNOTATION: "x"}}})), "cali")
            .unwrap()
            .1;
    assert!(garbled.unwrap_err().to_string().contains(FLOATING_IPS_ANNOTATION));
}

#[test]
fn long_service_accounts_are_no_label() {
    let endpoint = converted(json!({"spec": {"serviceAccountName": "a".repeat(63)}}));
    assert_eq!(endpoint.metadata.labels.get("projectcalico.org/serviceaccount"), None);
    assert_eq!(endpoint.spec.profiles.len(), 2);
}

#[test]
fn patches_name_the_pod_they_are_for() {
    assert_eq!(
        patch("u1", &["10.0.0.1/32".into(), "fd00::1/128".into()], "c1"),
        json!({"metadata": {"uid": "u1", "annotations": {POD_IP_ANNOTATION: "10.0.0.1/32",
            POD_IPS_ANNOTATION: "10.0.0.1/32,fd00::1/128", CONTAINER_ID_ANNOTATION: "c1"}}})
    );
    assert_eq!(
        removal("", None),
        json!({"metadata": {"annotations": {POD_IP_ANNOTATION: "", POD_IPS_ANNOTATION: ""}}})
    );
}
