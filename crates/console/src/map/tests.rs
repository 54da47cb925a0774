use super::*;
use proptest::prelude::*;

fn record(from: &str, to: &str) -> TrafficRecord {
    let end = |text: &str| {
        let (namespace, name) = text.split_once('/').unwrap();
        (namespace.to_owned(), name.to_owned())
    };
    TrafficRecord { from: end(from), to: end(to), denied: false, connections: 1, bytes: 10 }
}

fn arbitrary_records(namespaces: usize) -> impl Strategy<Value = Vec<TrafficRecord>> {
    let end = move || {
        (0..namespaces, 0usize..4).prop_map(|(namespace, name)| (format!("n{namespace}"), format!("w{name}")))
    };
    let record = (end(), end(), any::<bool>(), 0u64..5, 0u64..100);
    let record = record.prop_map(|(from, to, denied, connections, bytes)| TrafficRecord {
        from,
        to,
        denied,
        connections,
        bytes,
    });
    proptest::collection::vec(record, 0..400)
}

#[test]
fn counters_at_their_limit_do_not_overflow() {
    let most = TrafficRecord { connections: u64::MAX, bytes: u64::MAX, ..record("web/a", "shop/b") };
    let records = [most.clone(), TrafficRecord { denied: true, ..most.clone() }, most];
    let map = TrafficMap::new(&MapLevel::Namespaces, &records);
    assert_eq!((map.lines()[0].allowed, map.lines()[0].denied), (u64::MAX, u64::MAX));
    assert_eq!(map.arrange(None).places.len(), 2);
}

#[test]
fn clients_are_left_of_their_servers() {
    let records = [record("web/a", "shop/b"), record("shop/b", "db/c"), record("-/pub", "web/a")];
    let map = TrafficMap::new(&MapLevel::Namespaces, &records);
    let layout = map.arrange(None);
    let columns: Vec<u32> =
        [OUTSIDE_BOX, "web", "shop", "db"].map(|name| layout.places[name].column).to_vec();
    assert_eq!(columns, [0, 1, 2, 3]);
    let map = TrafficMap::new(&MapLevel::Workloads("shop".to_owned()), &records);
    let names: Vec<String> = map.arrange(None).places.into_keys().collect();
    assert_eq!(names, ["db", "shop/b", "web"]);
}

#[test]
fn the_quietest_boxes_are_folded() {
    let mut records = Vec::new();
    for number in 0..5000u64 {
        let mut flow = record(&format!("n{number}/a"), "hub/b");
        flow.connections = number + 1;
        records.push(flow);
    }
    let map = TrafficMap::new(&MapLevel::Namespaces, &records);
    let layout = map.arrange(None);
    assert_eq!(layout.places.len(), MAX_BOXES);
    assert_eq!(map.folded(), 5001 - (MAX_BOXES - 1));
    assert!(layout.places.contains_key("n4999") && layout.places.contains_key("hub"));
    assert!(!layout.places.contains_key("n0") && layout.places.contains_key(FOLDED_BOX));
    let connections: u64 = map.lines().iter().map(|line| line.allowed).sum();
    assert_eq!(connections, (1..=5000).sum::<u64>(), "nothing is lost");
}

proptest! {
    // The inputs are large.
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_order_of_flows_changes_nothing(records in arbitrary_records(300), cut in 0usize..400) {
        let cut = cut.min(records.len());
        let turned = [&records[cut..], &records[..cut]].concat();
        let (map, other) = (TrafficMap::new(&MapLevel::Namespaces, &records), TrafficMap::new(&MapLevel::Namespaces, &turned));
        prop_assert_eq!(&map, &other);
        prop_assert_eq!(map.arrange(None), other.arrange(None));
    }

    #[test]
    fn boxes_are_bounded_and_never_overlap(before in arbitrary_records(400), after in arbitrary_records(400)) {
        let last = TrafficMap::new(&MapLevel::Namespaces, &before).arrange(None);
        let layout = TrafficMap::new(&MapLevel::Namespaces, &after).arrange(Some(&last));
        prop_assert!(layout.places.len() <= MAX_BOXES);
        let places: BTreeSet<BoxPlace> = layout.places.values().copied().collect();
        prop_assert_eq!(places.len(), layout.places.len());
    }

    #[test]
    fn a_new_workload_moves_nothing_else(records in arbitrary_records(20), to in 0usize..20) {
        for level in [MapLevel::Namespaces, MapLevel::Workloads("n1".to_owned())] {
            let last = TrafficMap::new(&level, &records).arrange(None);
            let mut more = records.clone();
            more.push(record("n1/new", &format!("n{to}/w0")));
            let layout = TrafficMap::new(&level, &more).arrange(Some(&last));
            for (name, place) in &last.places {
                prop_assert_eq!(layout.places.get(name), Some(place), "{} moved", name);
            }
        }
    }
}
