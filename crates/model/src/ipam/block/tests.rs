use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

fn now() -> Timestamp {
    "2026-03-01T10:20:30.123456789Z".parse().unwrap()
}

fn after(seconds: i64) -> Timestamp {
    now() + jiff::SignedDuration::from_secs(seconds)
}

fn holder(handle: &str) -> AddressHolder {
    AddressHolder::new(Some(handle), BTreeMap::from([("node".to_owned(), "n1".to_owned())]))
}

fn none() -> ReservedRanges {
    ReservedRanges::default()
}

fn block(cidr: &str) -> AddressBlock {
    fresh(cidr.parse().unwrap(), &BlockOwner::host("n1"), None, now())
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn take(block: &mut AddressBlock, count: usize, handle: &str) -> Vec<IpAddr> {
    let taken = allocate(block, count, &holder(handle), &none());
    advance(block);
    taken
}

#[test]
fn fresh_blocks_equal_those_of_calico() {
    let text = serde_json::to_string(&block("10.65.3.8/29")).unwrap();
    assert_eq!(
        text,
        concat!(
            r#"{"cidr":"10.65.3.8/29","affinity":"host:n1","affinity_claim_time":"2026-03-01T10:20:30Z","#,
            r#""allocations":[null,null,null,null,null,null,null,null],"unallocated":[0,1,2,3,4,5,6,7],"#,
            r#""attributes":null,"sequenceNumber":1772360430123456789,"sequenceNumberForAllocation":{},"#,
            r#""deleted":false}"#
        )
    );
}

#[test]
fn first_address_out_and_back() {
    let mut block = block("10.65.3.0/26");
    let sequence = block.sequence_number;
    assert_eq!(take(&mut block, 1, "net.a"), [ip("10.65.3.0")]);
    assert_eq!(block.unallocated, (1..64).collect::<Vec<_>>());
    assert_eq!(block.sequence_number_for_allocation[&0], sequence);
    assert_eq!(block.sequence_number, sequence + 1);

    let released = release(&mut block, &[ReleaseRequest::of(ip("10.65.3.0"))], after(5)).unwrap();
    thaw(&mut block, 0, after(5));
    advance(&mut block);
    assert_eq!(released.handles, BTreeMap::from([("net.a".to_owned(), 1)]));
    assert_eq!(block.unallocated, (1..64).chain([0]).collect::<Vec<_>>());
    assert!(block.attributes.is_empty() && block.sequence_number_for_allocation.is_empty());
    assert_eq!(block.sequence_number, sequence + 2);
    assert!(is_empty(&block));
}

#[test]
fn one_record_for_the_same_holder() {
    let mut block = block("10.65.3.0/29");
    take(&mut block, 2, "a");
    take(&mut block, 1, "b");
    take(&mut block, 1, "a");
    assert_eq!(block.attributes.len(), 2);
    assert_eq!(&block.allocations[..5], [Some(0), Some(0), Some(1), Some(0), None]);
    assert_eq!(addresses_of(&block, "a"), [ip("10.65.3.0"), ip("10.65.3.1"), ip("10.65.3.3")]);
}

#[test]
fn reserved_addresses_keep_their_place_in_the_queue() {
    let mut block = block("10.65.3.0/29");
    let reserved = ReservedRanges::new(["10.65.3.0/31".parse().unwrap(), "10.65.3.4/32".parse().unwrap()]);
    assert_eq!(free(&block, &reserved), 5);
    let taken = allocate(&mut block, 3, &holder("a"), &reserved);
    assert_eq!(taken, [ip("10.65.3.2"), ip("10.65.3.3"), ip("10.65.3.5")]);
    assert_eq!(block.unallocated, [0, 1, 4, 6, 7]);
    allocate_address(&mut block, ip("10.65.3.4"), &holder("b")).unwrap();
    assert_eq!(block.unallocated, [0, 1, 6, 7]);
}

#[test]
fn an_address_is_given_once() {
    let mut block = block("10.65.3.0/30");
    assert_eq!(take(&mut block, 9, "a").len(), 4);
    assert!(take(&mut block, 1, "b").is_empty());
    let error = allocate_address(&mut block, ip("10.65.3.1"), &holder("b")).unwrap_err();
    assert!(matches!(error, BlockError::AlreadyAssigned { .. }), "{error}");
    assert!(allocate_address(&mut block, ip("10.65.9.1"), &holder("b")).is_err());
}

#[test]
fn cooling_addresses_are_neither_free_nor_held() {
    let mut block = block("10.65.3.0/30");
    take(&mut block, 1, "a");
    release(&mut block, &[ReleaseRequest::of(ip("10.65.3.0"))], after(0)).unwrap();
    thaw(&mut block, 30, after(29));
    assert_eq!(block.unallocated, [1, 2, 3]);
    assert!(!is_empty(&block));
    assert!(addresses_of(&block, "a").is_empty());
    assert!(allocate_address(&mut block, ip("10.65.3.0"), &holder("b")).is_err());
    let again = release(&mut block, &[ReleaseRequest::of(ip("10.65.3.0"))], after(1)).unwrap();
    assert_eq!(again.unallocated, [ip("10.65.3.0")]);
    assert_eq!(block.attributes[0].released_at, Some("2026-03-01T10:20:30Z".parse().unwrap()));
    thaw(&mut block, 30, after(30));
    assert_eq!(block.unallocated, [1, 2, 3, 0]);
    assert!(is_empty(&block) && block.attributes.is_empty());
}

#[test]
fn conditions_of_a_release() {
    let mut block = block("10.65.3.0/29");
    let sequence = block.sequence_number;
    take(&mut block, 2, "a");
    let before = block.clone();
    let ask = |address: &str, handle: Option<&str>, sequence_number| ReleaseRequest {
        address: ip(address),
        handle: handle.map(str::to_owned),
        sequence_number,
    };
    for (wanted, text) in [
        (
            ask("10.65.3.0", None, Some(sequence + 5)),
            "update conflict: 10.65.3.0: its allocation has sequence number",
        ),
        (ask("10.65.3.5", None, Some(sequence)), "sequence number 0, the request was for"),
        (ask("10.65.3.0", Some("b"), None), "it belongs to handle 'a', the request was for 'b'"),
    ] {
        let both = [ReleaseRequest::of(ip("10.65.3.1")), wanted];
        let error = release(&mut block, &both, now()).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
        assert_eq!(block, before);
    }
    let wanted = [
        ask("10.65.3.0", Some("a"), Some(sequence)),
        ask("10.65.3.0", Some("a"), Some(sequence)),
        ask("10.65.3.6", None, None),
        ask("10.9.9.9", None, None),
    ];
    let released = release(&mut block, &wanted, now()).unwrap();
    assert_eq!(released.addresses, [ip("10.65.3.0")]);
    assert_eq!(released.unallocated, [ip("10.65.3.6"), ip("10.9.9.9")]);
    assert_eq!(released.handles, BTreeMap::from([("a".to_owned(), 1)]));
}

#[test]
fn reserved_addresses_do_not_fill_a_block() {
    let reserved = HostReserved::windows();
    let mut block = fresh("10.65.3.0/29".parse().unwrap(), &BlockOwner::host("w"), Some(&reserved), now());
    assert!(is_empty(&block));
    assert_eq!(block.unallocated, [3, 4, 5, 6]);
    assert_eq!(block.attributes[0].secondary["note"], "windows host rsvd");
    take(&mut block, 1, "a");
    assert!(!is_empty(&block));
}

#[test]
fn a_broken_block_hands_out_nothing_twice() {
    let mut block = block("10.65.3.0/30");
    take(&mut block, 1, "a");
    block.unallocated = vec![0, 9, 1, 1];
    block.allocations[2] = Some(77);
    assert_eq!(take(&mut block, 4, "b"), [ip("10.65.3.1")]);
    assert!(!is_empty(&block));
    let released = release(&mut block, &[ReleaseRequest::of(ip("10.65.3.2"))], now()).unwrap();
    assert_eq!(released.unallocated, [ip("10.65.3.2")]);
    thaw(&mut block, 0, now());
    assert!(block.allocations[2].is_some_and(|index| index as usize >= block.attributes.len()));
}

#[test]
fn sequence_numbers_keep_all_their_digits() {
    let mut block = block("10.65.3.0/31");
    block.sequence_number = u64::MAX;
    take(&mut block, 1, "a");
    let text = serde_json::to_string(&block).unwrap();
    let back: AddressBlock = serde_json::from_str(&text).unwrap();
    assert_eq!(back.sequence_number_for_allocation[&0], u64::MAX);
    assert_eq!(back.sequence_number, 0);
    assert_eq!(back, block);
}

#[derive(Clone, Debug)]
enum BlockStep {
    Take { count: usize, handle: u8 },
    TakeAddress { ordinal: u32, handle: u8 },
    Release { ordinal: u32 },
    ReleaseHandle { handle: u8 },
    Wait { seconds: i64 },
}

fn step() -> impl Strategy<Value = BlockStep> {
    prop_oneof![
        (0usize..6, 0u8..4).prop_map(|(count, handle)| BlockStep::Take { count, handle }),
        (0u32..18, 0u8..4).prop_map(|(ordinal, handle)| BlockStep::TakeAddress { ordinal, handle }),
        (0u32..18).prop_map(|ordinal| BlockStep::Release { ordinal }),
        (0u8..4).prop_map(|handle| BlockStep::ReleaseHandle { handle }),
        (1i64..20).prop_map(|seconds| BlockStep::Wait { seconds }),
    ]
}

/// A minimal reference model of a block.
#[derive(Default)]
struct BlockModel {
    queue: VecDeque<u32>,
    held: BTreeMap<u32, u8>,
    cooling: BTreeMap<u32, i64>,
}

impl BlockModel {
    fn thaw(&mut self, time: i64, cooldown: i64) {
        let done: Vec<u32> = self
            .cooling
            .iter()
            .filter(|(_, at)| cooldown == 0 || time - **at >= cooldown)
            .map(|(ordinal, _)| *ordinal)
            .collect();
        for ordinal in done {
            self.cooling.remove(&ordinal);
            self.queue.push_back(ordinal);
        }
    }
}

proptest! {
    #[test]
    fn a_block_does_what_a_simple_model_does(
        steps in proptest::collection::vec(step(), 1..60), cooldown in prop_oneof![Just(0u32), Just(10)],
    ) {
        let mut block = block("10.65.3.0/28");
        let mut model = BlockModel { queue: (0..16).collect(), ..BlockModel::default() };
        let mut time = 0;
        for step in steps {
            // Times here have a fraction of a second, so that "more than" and "at least" whole seconds are
            // equivalent.
            thaw(&mut block, cooldown, after(time));
            model.thaw(time, i64::from(cooldown));
            match step {
                BlockStep::Take { count, handle } => {
                    let taken = take(&mut block, count, &handle.to_string());
                    let expected: Vec<u32> = model.queue.drain(..count.min(model.queue.len())).collect();
                    model.held.extend(expected.iter().map(|ordinal| (*ordinal, handle)));
                    let taken: Vec<u32> =
                        taken.into_iter().filter_map(|ip| space::ordinal(&block.cidr, ip)).collect();
                    prop_assert_eq!(taken, expected);
                }
                BlockStep::TakeAddress { ordinal, handle } => {
                    let address = ip(&format!("10.65.3.{ordinal}"));
                    let result = allocate_address(&mut block, address, &holder(&handle.to_string()));
                    let place = model.queue.iter().position(|free| *free == ordinal);
                    prop_assert_eq!(result.is_ok(), place.is_some());
                    if let Some(place) = place {
                        model.queue.remove(place);
                        model.held.insert(ordinal, handle);
                    }
                }
                BlockStep::Release { ordinal } => {
                    let address = ip(&format!("10.65.3.{ordinal}"));
                    let released = release(&mut block, &[ReleaseRequest::of(address)], after(time)).unwrap();
                    let was_held = model.held.remove(&ordinal).is_some();
                    prop_assert_eq!(released.addresses.len(), usize::from(was_held));
                    if was_held {
                        model.cooling.insert(ordinal, time);
                    }
                }
                BlockStep::ReleaseHandle { handle } => {
                    let released = release_handle(&mut block, &handle.to_string(), after(time));
                    let held: Vec<u32> =
                        model.held.iter().filter(|(_, h)| **h == handle).map(|(o, _)| *o).collect();
                    prop_assert_eq!(released.len(), held.len());
                    for ordinal in held {
                        model.held.remove(&ordinal);
                        model.cooling.insert(ordinal, time);
                    }
                }
                BlockStep::Wait { seconds } => time += seconds,
            }
            thaw(&mut block, cooldown, after(time));
            model.thaw(time, i64::from(cooldown));
            prop_assert_eq!(&block.unallocated, &Vec::from(model.queue.clone()));
            prop_assert_eq!(is_empty(&block), model.held.is_empty() && model.cooling.is_empty());
            prop_assert_eq!(faults(&block, after(time)), Vec::<String>::new());
            let text = serde_json::to_string(&block).unwrap();
            prop_assert_eq!(&serde_json::from_str::<AddressBlock>(&text).unwrap(), &block);
        }
    }
}

/// Generates arbitrary blocks, including corrupt ones.
fn any_block() -> impl Strategy<Value = AddressBlock> {
    let record = (proptest::option::of("[a-c]"), any::<bool>()).prop_map(|(handle_id, released)| {
        Arc::new(AllocationAttribute {
            handle_id,
            released_at: released.then(now),
            ..AllocationAttribute::default()
        })
    });
    let allocations = proptest::collection::vec(proptest::option::of(0u32..6), 0..24);
    let records = proptest::collection::vec(record, 0..4);
    (allocations, proptest::collection::vec(0u32..40, 0..40), records, any::<u64>()).prop_map(
        |(allocations, unallocated, attributes, sequence_number)| AddressBlock {
            allocations,
            unallocated,
            attributes,
            sequence_number,
            ..block("10.65.3.0/28")
        },
    )
}

proptest! {
    #[test]
    fn any_block_is_handled_without_double_allocation(mut block in any_block(), count in 0usize..40, ordinal in 0u32..40) {
        let address = ip(&format!("10.65.3.{ordinal}"));
        thaw(&mut block, 10, after(60));
        let before = block.clone();
        let taken = allocate(&mut block, count, &holder("new"), &none());
        advance(&mut block);
        let unique: BTreeSet<&IpAddr> = taken.iter().collect();
        prop_assert_eq!(unique.len(), taken.len());
        for address in &taken {
            let ordinal = space::ordinal(&before.cidr, *address).unwrap() as usize;
            prop_assert_eq!(before.allocations[ordinal], None);
        }
        let _ = allocate_address(&mut block, address, &holder("other"));
        let _ = record(&block, address);
        release(&mut block, &[ReleaseRequest::of(address)], after(61)).unwrap();
        release_handle(&mut block, "a", after(62));
        thaw(&mut block, 0, after(63));
        prop_assert!(addresses_of(&block, "a").is_empty());
        faults(&block, after(64));
        prop_assert_eq!(allocations(&block).count(), block.allocations.iter().take(16).flatten().count());
    }
}
