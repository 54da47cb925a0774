use super::*;
use tortie_model::ObjectMeta;
use tortie_model::kinds::ProtoPort;
use tortie_plan::{DenyAction, FailsafePort};

fn configuration(name: &str, created: &str, spec: FelixConfigurationSpec) -> FelixConfiguration {
    let meta = ObjectMeta {
        name: name.to_owned(),
        creation_timestamp: Some(created.to_owned()),
        ..ObjectMeta::default()
    };
    FelixConfiguration::new(meta, spec)
}

fn port(port: i64, selector: &str) -> FelixConfigurationSpec {
    FelixConfigurationSpec {
        health_port: Some(port),
        node_selector: selector.to_owned(),
        ..FelixConfigurationSpec::default()
    }
}

fn texts(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn resolved(all: &[FelixConfiguration], variables: &[(&str, &str)], file: &[(&str, &str)]) -> NodeParameters {
    let labels = BTreeMap::from([("rack".to_owned(), "1".to_owned())]);
    NodeParameters::resolve("n1", &labels, all, &ParameterEnvironment::new(texts(variables), texts(file)))
}

fn variable(name: &str, value: &str) -> NodeParameters {
    resolved(&[], &[(name, value)], &[])
}

fn in_force(parameters: &NodeParameters, key: &str) -> (String, ParameterSource) {
    let found = parameters.all().find(|in_force| in_force.parameter.key == key).unwrap();
    (found.value, found.source)
}

#[test]
fn the_strongest_source_wins_and_is_named() {
    let mut all = vec![];
    let port_of = |all: &[FelixConfiguration], variables: &[(&str, &str)], file: &[(&str, &str)]| {
        let parameters = resolved(all, variables, file);
        let (value, source) = in_force(&parameters, "healthPort");
        assert_eq!(value, parameters.health_port.to_string());
        (parameters.health_port, source.to_string())
    };
    let is = |port, source: &str| (port, source.to_owned());
    assert_eq!(port_of(&all, &[], &[]), is(9099, "built-in"));
    all.push(configuration("default", "2026-01-01T00:00:00Z", port(1, "")));
    assert_eq!(port_of(&all, &[], &[]), is(1, "FelixConfiguration default"));
    all.push(configuration("younger", "2026-01-03T00:00:00Z", port(2, "rack == '1'")));
    all.push(configuration("older", "2026-01-02T00:00:00Z", port(3, "rack == '1'")));
    all.push(configuration("other", "2026-01-01T00:00:00Z", port(4, "rack == '2'")));
    assert_eq!(port_of(&all, &[], &[]), is(3, "FelixConfiguration older"));
    all.push(configuration("node.n1", "2026-01-09T00:00:00Z", port(5, "")));
    all.push(configuration("node.n2", "2026-01-09T00:00:00Z", port(6, "")));
    assert_eq!(port_of(&all, &[], &[]), is(5, "FelixConfiguration node.n1"));
    assert_eq!(port_of(&all, &[], &[("healthport", "7")]), is(7, "felix.cfg"));
    assert_eq!(port_of(&all, &[("felix_HealthPort", "8")], &[("HealthPort", "7")]), is(8, "environment"));
    assert_eq!(resolved(&all, &[("FELIX_HEALTHPORT", "None")], &[]).health_port, 0);
}

#[test]
fn an_empty_variable_sets_nothing() {
    let all = [configuration("default", "", port(1, ""))];
    for empty in ["", "  "] {
        let parameters = resolved(&all, &[("FELIX_HEALTHPORT", empty)], &[("HealthPort", empty)]);
        assert_eq!((parameters.health_port, parameters.warnings()), (1, &[][..]));
    }
}

#[test]
fn unreadable_values_are_reported_and_defaults_apply() {
    for (name, value, report) in [
        (
            "FELIX_HEALTHPORT",
            "x",
            "healthPort (environment): \"x\" is not a whole number; the default holds: 9099",
        ),
        (
            "FELIX_HEALTHPORT",
            "65536",
            "healthPort (environment): \"65536\" is too small or too large; the default holds: 9099",
        ),
        ("FELIX_HEALTHENABLED", "maybe", "healthEnabled (environment): \"maybe\" is none of true, "),
        (
            "FELIX_REPORTINGINTERVALSECS",
            "soon",
            "reportingInterval (environment): \"soon\" is not a span of time",
        ),
        (
            "FELIX_SERVICELOOPPREVENTION",
            "none",
            "serviceLoopPrevention (environment): \"none\" is none of Drop, Reject, Disabled",
        ),
        (
            "FELIX_LOGACTIONRATELIMIT",
            "10/year",
            "logActionRateLimit (environment): \"10/year\" has a unit that is none of second",
        ),
        ("FELIX_NOSUCHTHING", "1", "nosuchthing (environment): unknown parameter"),
    ] {
        let parameters = variable(name, value);
        let [warning] = parameters.warnings() else { panic!("{:?}", parameters.warnings()) };
        assert!(warning.starts_with(report), "{warning}");
        assert_eq!(parameters.values, Values::default());
    }
}

#[test]
fn words_are_case_insensitive_and_values_have_forms() {
    assert_eq!(variable("FELIX_REPORTINGINTERVALSECS", "5").reporting_interval.as_secs(), 5);
    assert_eq!(variable("FELIX_REPORTINGINTERVALSECS", "1m30s").reporting_interval.as_secs(), 90);
    assert!(variable("FELIX_HEALTHENABLED", "TRUE").health_enabled);
    assert!(!variable("FELIX_IPFORWARDING", "disabled").ip_forwarding);
    assert_eq!(variable("FELIX_ROUTESOURCE", "workloadips").route_source, RouteSource::WorkloadIps);
    let routes = variable("FELIX_PROGRAMCLUSTERROUTES", "ENABLEDNOENCAPONLY").program_cluster_routes.clone();
    assert_eq!(routes, OptionalParameter { value: ClusterRoutes::NoEncapOnly, is_set: true });
    assert_eq!(variable("FELIX_WORKLOADSOURCESPOOFING", "ANY").workload_source_spoofing, SourceSpoofing::Any);
    assert_eq!(variable("FELIX_SERVICELOOPPREVENTION", "DISABLED").service_loop_prevention, None);
    assert_eq!(
        variable("FELIX_NFTABLESFILTERDENYACTION", "reject").nftables_filter_deny_action.get(),
        Some(&DenyAction::Reject)
    );
    assert_eq!(
        variable("FELIX_ENDPOINTSTATUSPATHPREFIX", "none").endpoint_status_path_prefix.get(),
        Some(&String::new())
    );
    let unset = NodeParameters::default();
    assert_eq!((unset.reporting_interval.as_secs(), unset.health_enabled), (30, false));
    assert_eq!(unset.interface_prefix, ["cali"]);
}

#[test]
fn every_default_of_an_effective_parameter_parses() {
    let parameters = NodeParameters::default();
    for ResolvedParameter { parameter, effect, .. } in parameters.all() {
        if matches!(effect, ParameterEffect::None { .. })
            || parameter.default.is_empty()
            || parameter.key == "nodeSelector"
        {
            continue;
        }
        let name = format!("FELIX_{}", parameter.name);
        let set = variable(&name, parameter.default);
        assert_eq!(set.warnings(), &[] as &[String], "{}", parameter.key);
    }
}

#[test]
fn failsafe_ports_are_parsed_as_in_calico() {
    let safe = |protocol, port, net: &str| FailsafePort { protocol, port, net: net.parse().ok() };
    let inbound = |value: &str| {
        let parameters = variable("FELIX_FAILSAFEINBOUNDHOSTPORTS", value);
        (parameters.failsafe_inbound_host_ports.clone(), parameters.warnings().to_vec())
    };
    let wanted =
        vec![safe(6, 22, ""), safe(17, 68, "10.1.2.0/24"), safe(132, 9, "fd00::/8"), safe(6, 443, "")];
    assert_eq!(inbound("tcp:22, udp:10.1.2.3/24:68,sctp:[fd00::/8]:9,443,"), (wanted, vec![]));
    assert_eq!(inbound("none"), (vec![], vec![]));
    let (ports, warnings) = inbound("tcp:22,tcp:http,udp:68");
    assert_eq!(ports, [safe(6, 22, ""), safe(17, 68, "")], "one bad entry does not throw the others away");
    assert_eq!(
        warnings,
        [
            "failsafeInboundHostPorts (environment): \"tcp:http\" has no port between 0 and 65535; this entry is left out"
        ]
    );
    let (ports, warnings) = inbound("tcp:http");
    assert_eq!(ports, Values::default().failsafe_inbound_host_ports, "nobody is locked out");
    assert_eq!(warnings.len(), 1, "{warnings:?}");

    let listed = |ports: Vec<ProtoPort>| {
        let spec = FelixConfigurationSpec {
            failsafe_outbound_host_ports: Some(ports),
            ..FelixConfigurationSpec::default()
        };
        resolved(&[configuration("default", "", spec)], &[], &[]).failsafe_outbound_host_ports.clone()
    };
    assert_eq!(listed(vec![]), []);
    let entry = |net: &str| ProtoPort { protocol: String::new(), port: 53, net: net.into() };
    assert_eq!(
        listed(vec![entry("192.0.2.7/32"), entry("fd00::/8")]),
        [safe(6, 53, "192.0.2.7/32"), safe(6, 53, "fd00::/8")]
    );
}

#[test]
fn what_is_set_without_effect_is_named() {
    let parameters = variable("FELIX_BPFENABLED", "true");
    assert_eq!(
        parameters.warnings(),
        ["bpfEnabled (environment): true has no effect here: there is no eBPF dataplane"]
    );
    // Defaults that the API fills in, and values equal to the default, cause no warning.
    let mut plain = configuration("default", "", FelixConfigurationSpec::default());
    tortie_model::ResourceSpec::set_defaults(&mut plain);
    assert_eq!(resolved(&[plain], &[("FELIX_XDPENABLED", "True")], &[]).warnings(), &[] as &[String]);
}

#[test]
fn nodes_that_loosen_the_cluster_are_reported() {
    let action = |name: &str, action: &str| {
        let spec = FelixConfigurationSpec {
            default_endpoint_to_host_action: action.to_owned(),
            ..FelixConfigurationSpec::default()
        };
        configuration(name, "", spec)
    };
    let warnings = |cluster: &str, node: &str| {
        resolved(&[action("default", cluster), action("node.n1", node)], &[], &[]).warnings().to_vec()
    };
    let warned = warnings("Drop", "return");
    assert!(
        warned.len() == 1 && warned[0].contains("node.n1 sets Return, which lets workloads reach this host"),
        "{warned:?}"
    );
    assert_eq!(warnings("Return", "Accept").len(), 1);
    for (cluster, node) in [("", "Return"), ("Return", "Drop"), ("Accept", "Accept"), ("Drop", "")] {
        assert_eq!(warnings(cluster, node), Vec::<String>::new(), "{cluster} {node}");
    }
}
