use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

const HOST: &str = "a";

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn service(traffic: ExternalTraffic) -> KubernetesService {
    KubernetesService {
        form: ServiceType::LoadBalancer,
        traffic,
        cluster_ips: vec![address("10.96.0.7")],
        external_ips: vec![address("192.0.2.7"), address("203.0.113.7")],
        ingress_ips: vec![address("198.51.100.7")],
        ip_versions: vec![4],
        ..KubernetesService::default()
    }
}

fn slice(service: &str, ready_on: &[&str]) -> EndpointSlice {
    EndpointSlice {
        service: service.to_owned(),
        ip_version: Some(4),
        ready_on: ready_on.iter().map(|node| (*node).to_owned()).collect(),
        ..EndpointSlice::default()
    }
}

fn put_service(routes: &mut ServiceRoutes, name: &str, service: KubernetesService) {
    let key = StoreKey::Service { namespace: "ns".into(), name: name.into() };
    routes.put(&key, &StoreValue::Service(Box::new(service)));
}

fn put_slice(routes: &mut ServiceRoutes, name: &str, slice: EndpointSlice) {
    let key = StoreKey::EndpointSlice { namespace: "ns".into(), name: name.into() };
    routes.put(&key, &StoreValue::EndpointSlice(slice));
}

fn settings() -> ServiceAdvertisementSettings {
    ServiceAdvertisementSettings {
        cluster: nets(&["10.96.0.0/16"]),
        external: nets(&["192.0.2.0/24"]),
        balancers: nets(&["198.51.100.0/24"]),
        aggregated: true,
    }
}

fn configured(settings: ServiceAdvertisementSettings) -> ServiceRoutes {
    let mut routes = ServiceRoutes::new(HOST);
    routes.configure(settings, false);
    routes
}

fn announced_now(routes: &mut ServiceRoutes) -> Vec<String> {
    routes.flush();
    routes.addresses().iter().map(ToString::to_string).collect()
}

#[test]
fn local_services_are_announced_at_ready_endpoints() {
    let mut routes = configured(settings());
    let ranges: Vec<String> = routes.ranges().iter().map(ToString::to_string).collect();
    assert_eq!(ranges, ["10.96.0.0/16", "192.0.2.0/24", "198.51.100.0/24"]);
    put_service(&mut routes, "web", service(ExternalTraffic::Local));
    assert!(announced_now(&mut routes).is_empty(), "no endpoint is known");
    put_slice(&mut routes, "s1", slice("web", &["b"]));
    assert!(announced_now(&mut routes).is_empty(), "none is here");
    put_slice(&mut routes, "s2", slice("web", &["a", "b"]));
    // 203.0.113.7 is not in a range that may be advertised.
    assert_eq!(announced_now(&mut routes), ["10.96.0.7", "192.0.2.7", "198.51.100.7"]);
    put_slice(&mut routes, "s2", slice("web", &["a"]));
    assert!(!routes.flush(), "the same as before");
    put_slice(&mut routes, "s2", EndpointSlice { ip_version: Some(6), ..slice("web", &["a"]) });
    assert!(announced_now(&mut routes).is_empty(), "not a family of the service");
    put_slice(&mut routes, "s2", slice("web", &["a"]));
    routes.configure(settings(), true);
    assert!(announced_now(&mut routes).is_empty() && routes.ranges().is_empty(), "the node is excluded");
    routes.configure(settings(), false);
    assert_eq!(announced_now(&mut routes).len(), 3);
    routes.remove(&StoreKey::EndpointSlice { namespace: "ns".into(), name: "s2".into() });
    assert!(announced_now(&mut routes).is_empty());
}

#[test]
fn other_services_need_ranges_that_are_announced() {
    let mut routes = configured(settings());
    put_service(&mut routes, "web", service(ExternalTraffic::Cluster));
    put_slice(&mut routes, "s1", slice("web", &["b"]));
    assert!(announced_now(&mut routes).is_empty());
    routes.configure(ServiceAdvertisementSettings { aggregated: false, ..settings() }, false);
    assert_eq!(announced_now(&mut routes).len(), 3, "ready endpoints somewhere are enough");
    put_slice(&mut routes, "s1", slice("web", &[]));
    assert!(announced_now(&mut routes).is_empty());
    // Every node advertises an address that is a range of one address, regardless of endpoints.
    routes.configure(
        ServiceAdvertisementSettings { balancers: nets(&["198.51.100.7/32"]), ..settings() },
        false,
    );
    assert_eq!(announced_now(&mut routes).len(), 3);
    put_service(
        &mut routes,
        "web",
        KubernetesService { cluster_ips: Vec::new(), ..service(ExternalTraffic::Cluster) },
    );
    assert!(announced_now(&mut routes).is_empty(), "a headless service has nothing to announce");
}

#[test]
fn shared_addresses_stay_until_the_last_service() {
    let mut routes = configured(settings());
    for name in ["x", "y"] {
        put_service(&mut routes, name, service(ExternalTraffic::Local));
        put_slice(&mut routes, name, slice(name, &["a"]));
    }
    assert_eq!(announced_now(&mut routes).len(), 3);
    routes.remove(&StoreKey::Service { namespace: "ns".into(), name: "x".into() });
    assert!(!routes.flush());
    assert_eq!(announced_now(&mut routes).len(), 3);
    routes.remove(&StoreKey::Service { namespace: "ns".into(), name: "y".into() });
    assert!(routes.flush() && routes.addresses().is_empty());
    assert!(routes.decided.is_empty() && routes.addresses.is_empty());
}

#[derive(Clone, Debug)]
enum ServiceRouteStep {
    Service(u8, Option<KubernetesService>),
    Slice(u8, Option<EndpointSlice>),
    Configure(ServiceAdvertisementSettings, bool),
    Flush,
}

fn services() -> impl Strategy<Value = KubernetesService> {
    use ExternalTraffic::*;
    use ServiceType::*;
    let some = |texts: &'static [&'static str]| {
        proptest::sample::subsequence(texts, 0..=texts.len())
            .prop_map(|texts| texts.into_iter().map(address).collect::<Vec<IpAddr>>())
    };
    (
        proptest::sample::select(vec![ClusterIP, NodePort, LoadBalancer, Other]),
        proptest::sample::select(vec![Cluster, Local, Unset]),
        some(&["10.96.0.1", "10.96.0.2", "fd96::1"]),
        some(&["192.0.2.1", "203.0.113.1"]),
        some(&["198.51.100.1", "198.51.100.2"]),
        proptest::sample::subsequence(vec![4, 6], 0..=2),
    )
        .prop_map(|(form, traffic, cluster_ips, external_ips, ingress_ips, ip_versions)| {
            KubernetesService {
                form,
                traffic,
                cluster_ips,
                external_ips,
                ingress_ips,
                ip_versions,
                ..KubernetesService::default()
            }
        })
}

fn slices() -> impl Strategy<Value = EndpointSlice> {
    let nodes = proptest::sample::subsequence(vec!["a", "b"], 0..=2);
    let version = proptest::sample::select(vec![Some(4), Some(6), None]);
    (0..3_u8, nodes, version).prop_map(|(service, nodes, ip_version)| EndpointSlice {
        ip_version,
        ..slice(&service.to_string(), &nodes)
    })
}

fn configurations() -> impl Strategy<Value = ServiceAdvertisementSettings> {
    let some = |texts: &'static [&'static str]| {
        proptest::sample::subsequence(texts, 0..=texts.len()).prop_map(|texts| nets(&texts))
    };
    (
        some(&["10.96.0.0/16", "fd96::/64"]),
        some(&["192.0.2.0/24", "203.0.113.1/32"]),
        some(&["198.51.100.0/24", "198.51.100.1/32"]),
        any::<bool>(),
    )
        .prop_map(|(cluster, external, balancers, aggregated)| ServiceAdvertisementSettings {
            cluster,
            external,
            balancers,
            aggregated,
        })
}

fn steps() -> impl Strategy<Value = ServiceRouteStep> {
    prop_oneof![
        4 => (0..3_u8, proptest::option::of(services())).prop_map(|(name, service)| ServiceRouteStep::Service(name, service)),
        6 => (0..4_u8, proptest::option::of(slices())).prop_map(|(name, slice)| ServiceRouteStep::Slice(name, slice)),
        1 => (configurations(), any::<bool>()).prop_map(|(settings, excluded)| ServiceRouteStep::Configure(settings, excluded)),
        3 => Just(ServiceRouteStep::Flush),
    ]
}

/// Computes the advertised addresses from the current state alone, without history.
fn from_scratch(
    settings: &ServiceAdvertisementSettings,
    excluded: bool,
    services: &BTreeMap<u8, KubernetesService>,
    slices: &BTreeMap<u8, EndpointSlice>,
) -> BTreeSet<IpAddr> {
    let mut all = BTreeSet::new();
    for (name, service) in services {
        let own = slices.values().filter(|slice| slice.service == name.to_string());
        let own: Vec<&EndpointSlice> = own
            .filter(|slice| slice.ip_version.is_some_and(|version| service.ip_versions.contains(&version)))
            .collect();
        let single = |ranges: &[IpNet], addresses: &[IpAddr]| {
            addresses.iter().any(|address| ranges.contains(&IpNet::from(*address)))
        };
        let alone = single(&settings.external, &service.external_ips)
            || service.form == ServiceType::LoadBalancer && single(&settings.balancers, &service.ingress_ips);
        let leads = match service.traffic {
            ExternalTraffic::Cluster if alone => true,
            ExternalTraffic::Local => own.iter().any(|slice| slice.ready_on.iter().any(|node| node == HOST)),
            _ => !settings.aggregated && own.iter().any(|slice| !slice.ready_on.is_empty()),
        };
        let real = service.form != ServiceType::Other && !service.cluster_ips.is_empty();
        if excluded || !leads || !real {
            continue;
        }
        let inside = |ranges: &[IpNet], address: &IpAddr| ranges.iter().any(|range| range.contains(address));
        all.extend(service.cluster_ips.iter().filter(|_| !settings.cluster.is_empty()));
        all.extend(service.external_ips.iter().filter(|address| inside(&settings.external, address)));
        all.extend(service.ingress_ips.iter().filter(|address| inside(&settings.balancers, address)));
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn announcements_depend_on_current_objects_only(steps in vec(steps(), 0..60)) {
        let mut routes = ServiceRoutes::new(HOST);
        let (mut settings, mut excluded) = (ServiceAdvertisementSettings::default(), false);
        let (mut services, mut slices) = (BTreeMap::new(), BTreeMap::new());
        let mut known = BTreeSet::new();
        for step in steps.into_iter().chain([ServiceRouteStep::Flush]) {
            match step {
                ServiceRouteStep::Service(name, Some(service)) => {
                    put_service(&mut routes, &name.to_string(), service.clone());
                    services.insert(name, service);
                }
                ServiceRouteStep::Service(name, None) => {
                    routes.remove(&StoreKey::Service { namespace: "ns".into(), name: name.to_string() });
                    services.remove(&name);
                }
                ServiceRouteStep::Slice(name, Some(slice)) => {
                    put_slice(&mut routes, &name.to_string(), slice.clone());
                    slices.insert(name, slice);
                }
                ServiceRouteStep::Slice(name, None) => {
                    routes.remove(&StoreKey::EndpointSlice { namespace: "ns".into(), name: name.to_string() });
                    slices.remove(&name);
                }
                ServiceRouteStep::Configure(new, out) => {
                    routes.configure(new.clone(), out);
                    (settings, excluded) = (new, out);
                }
                ServiceRouteStep::Flush => {
                    let changed = routes.flush();
                    let expected = from_scratch(&settings, excluded, &services, &slices);
                    prop_assert_eq!(routes.addresses(), expected.clone());
                    // An address that moves from one service to another may be reported as changed although it is
                    // not.
                    prop_assert!(changed || expected == known, "a change is reported");
                    known = expected;
                }
            }
        }
    }
}
