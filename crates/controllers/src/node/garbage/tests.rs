use super::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tortie_ipam::AddressHolder;
use tortie_ipam::reservation::ReservedRanges;
use tortie_model::kinds::{WorkloadEndpoint, WorkloadEndpointSpec};
use tortie_model::{ObjectMeta, TypedObject};

const GRACE: Duration = Duration::from_secs(900);

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// The state of a cluster, and the collector with the part of it that it has received.
struct GarbageTestWorld {
    garbage: AddressCollector,
    pods: PodIndex,
    nodes: NodeIndex,
    blocks: BTreeMap<IpNet, AddressBlock>,
    /// Addresses in use, by pod.
    live: BTreeMap<PodName, (String, IpAddr)>,
    now: MonotonicTime,
    handles: u32,
}

fn endpoint(pod: &PodName, node: &str, addresses: &[IpAddr]) -> WorkloadEndpoint {
    let spec = WorkloadEndpointSpec {
        node: node.to_owned(),
        pod: pod.name.clone(),
        ip_networks: addresses.iter().map(|address| format!("{address}/32")).collect(),
        ..WorkloadEndpointSpec::default()
    };
    TypedObject::new(ObjectMeta { namespace: pod.namespace.clone(), ..ObjectMeta::default() }, spec)
}

impl GarbageTestWorld {
    fn new(nodes: &[&str]) -> GarbageTestWorld {
        let mut world = GarbageTestWorld {
            garbage: AddressCollector::default(),
            pods: PodIndex::default(),
            nodes: NodeIndex::default(),
            blocks: BTreeMap::new(),
            live: BTreeMap::new(),
            now: seconds(1_000_000),
            handles: 0,
        };
        world.garbage.set_grace(Some(GRACE));
        nodes.iter().for_each(|node| world.add_node(node));
        world
    }

    fn add_node(&mut self, name: &str) {
        self.nodes.kubernetes.insert(name.to_owned());
    }

    /// Creates a block for a node at the first free CIDR.
    fn claim_block(&mut self, node: &str) -> IpNet {
        let number = (0..=255).find(|number| !self.blocks.contains_key(&cidr(*number))).unwrap();
        let cidr = cidr(number);
        let block = block::fresh(cidr, &BlockOwner::host(node), None, jiff::Timestamp::UNIX_EPOCH);
        self.put(block);
        self.garbage.put_affinity(node, cidr, self.now);
        cidr
    }

    fn put(&mut self, block: AddressBlock) {
        self.garbage.put_block(block.clone(), self.now);
        self.blocks.insert(block.cidr, block);
    }

    fn attributes(pod: &PodName, node: &str) -> BTreeMap<String, String> {
        [
            (attribute::POD_ATTRIBUTE, pod.name.as_str()),
            (attribute::NAMESPACE_ATTRIBUTE, &pod.namespace),
            (attribute::NODE_ATTRIBUTE, node),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
    }

    /// Assigns an address on a node, from its own blocks or a new one.
    fn assign(&mut self, node: &str, holder: &AddressHolder) -> IpAddr {
        let none = ReservedRanges::new([]);
        let own = self
            .blocks
            .values()
            .find(|block| block::belongs_to(block, &BlockOwner::host(node)) && block::free(block, &none) > 0);
        let cidr = match own {
            Some(block) => block.cidr,
            None => self.claim_block(node),
        };
        let mut block = self.blocks[&cidr].clone();
        let taken = block::allocate(&mut block, 1, holder, &none);
        block::advance(&mut block);
        self.put(block);
        taken[0]
    }

    fn handle(&mut self) -> String {
        self.handles += 1;
        format!("k8s-pod-network.{}", self.handles)
    }

    fn add_pod(&mut self, node: &str, name: &str) -> IpAddr {
        let pod = PodName { namespace: "ns".into(), name: name.to_owned() };
        let handle = self.handle();
        let address =
            self.assign(node, &AddressHolder::new(Some(&handle), GarbageTestWorld::attributes(&pod, node)));
        self.pods.put(&endpoint(&pod, node, &[address]));
        self.live.insert(pod, (node.to_owned(), address));
        address
    }

    /// Removes a pod without releasing its address.
    fn lose_pod(&mut self, pod: &PodName) {
        if let Some((node, _)) = self.live.remove(pod) {
            self.pods.remove(pod, &node);
        }
        self.garbage.scan_soon(self.now);
    }

    fn release(&mut self, addresses: &[ReleaseRequest]) {
        for release in addresses {
            let cidr = *self.blocks.keys().find(|cidr| cidr.contains(&release.address)).unwrap();
            let mut block = self.blocks[&cidr].clone();
            block::release(&mut block, std::slice::from_ref(release), jiff::Timestamp::UNIX_EPOCH).unwrap();
            block::thaw(&mut block, 0, jiff::Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_secs(5));
            block::advance(&mut block);
            self.put(block);
        }
    }

    /// Runs one scan and executes its actions; none of them may release an address in use.
    fn collect(&mut self) -> Vec<GarbageAction> {
        let claims = self.garbage.scan(&self.pods, &self.nodes, self.now);
        let actions: Vec<GarbageAction> = claims.into_iter().map(|claim| claim.action).collect();
        for action in &actions {
            match action {
                GarbageAction::Release { addresses, .. } => {
                    for release in addresses {
                        let user = self.live.iter().find(|(_, (_, address))| *address == release.address);
                        assert!(user.is_none(), "{release:?} is released, but {user:?} uses it");
                    }
                    self.release(addresses);
                }
                GarbageAction::ReleaseBlock { owner, cidr } => {
                    let block = self.blocks.get(cidr);
                    assert!(block.is_none_or(block::is_empty), "{cidr} of {owner} is not empty");
                    self.blocks.remove(cidr);
                    self.garbage.remove_block(cidr);
                    self.garbage.remove_affinity(&owner.name, *cidr);
                }
            }
        }
        actions
    }

    fn assigned(&self) -> BTreeSet<IpAddr> {
        self.blocks.values().flat_map(block::allocations).map(|allocation| allocation.address).collect()
    }
}

fn cidr(number: u8) -> IpNet {
    format!("10.0.{number}.0/29").parse().unwrap()
}

fn pod(name: &str) -> PodName {
    PodName { namespace: "ns".into(), name: name.into() }
}

#[test]
fn leaks_are_released_after_grace_and_a_check() {
    let mut world = GarbageTestWorld::new(&["n1"]);
    let (lost, kept) = (world.add_pod("n1", "lost"), world.add_pod("n1", "kept"));
    assert_eq!(world.collect(), []);
    world.lose_pod(&pod("lost"));
    assert_eq!(world.collect(), []);
    assert_eq!(world.garbage.suspects(), 1);
    world.now += GRACE - seconds(1);
    assert_eq!(world.collect(), []);
    world.now += seconds(1);
    let claims = world.garbage.scan(&world.pods, &world.nodes, world.now);
    let hold = AbsenceSubject::PodHold { pod: pod("lost"), node: Some("n1".into()), addresses: vec![lost] };
    assert_eq!(claims[0].absent, [hold].into());
    let [GarbageAction::Release { addresses, .. }] = &world.collect()[..] else { panic!() };
    assert_eq!(addresses[0].address, lost);
    assert!(addresses[0].sequence_number.is_some() && addresses[0].handle.is_some());
    assert_eq!(world.assigned(), [kept].into());
    assert_eq!(world.collect(), []);
    assert_eq!(world.garbage.suspects(), 0);
}

#[test]
fn pods_that_return_within_grace_keep_addresses() {
    let mut world = GarbageTestWorld::new(&["n1", "n2"]);
    let address = world.add_pod("n1", "web");
    world.pods.remove(&pod("web"), "n2");
    world.collect();
    assert_eq!(world.garbage.suspects(), 0, "the pod was removed from another node");
    world.pods.remove(&pod("web"), "n1");
    world.collect();
    assert_eq!(world.garbage.suspects(), 1);
    world.pods.put(&endpoint(&pod("web"), "n1", &[address]));
    world.now += GRACE;
    assert_eq!(world.collect(), [], "the pod exists again");
    world.pods.put(&endpoint(&pod("web"), "n1", &[]));
    world.now += GRACE;
    assert_eq!(world.collect(), [], "a pod without an address may be about to get one");
    // The pod now runs on another node with another address: the old one is leaked.
    world.live.clear();
    world.pods.put(&endpoint(&pod("web"), "n2", &["10.9.9.9".parse().unwrap()]));
    world.collect();
    world.now += GRACE;
    assert_eq!(world.collect().len(), 1);
    assert!(world.assigned().is_empty());
}

#[test]
fn a_handle_is_released_as_a_whole() {
    let mut world = GarbageTestWorld::new(&["n1"]);
    let address = world.add_pod("n1", "web");
    let handle = format!("k8s-pod-network.{}", world.handles);
    let second = world
        .assign("n1", &AddressHolder::new(Some(&handle), GarbageTestWorld::attributes(&pod("gone"), "n1")));
    world.collect();
    world.now += GRACE * 2;
    assert_eq!(world.collect(), [], "one address of the handle is held");
    world.lose_pod(&pod("web"));
    world.collect();
    world.now += GRACE;
    let [GarbageAction::Release { addresses, .. }] = &world.collect()[..] else { panic!() };
    let released: BTreeSet<IpAddr> = addresses.iter().map(|release| release.address).collect();
    assert_eq!(released, [address, second].into());
}

#[test]
fn a_gone_node_releases_addresses_without_holders() {
    let mut world = GarbageTestWorld::new(&["n1", "n2"]);
    world.add_pod("n1", "web");
    let tunnel: BTreeMap<String, String> =
        [(attribute::NODE_ATTRIBUTE, "n1"), (attribute::TYPE_ATTRIBUTE, "vxlanTunnelAddress")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
    let device = world.assign("n1", &AddressHolder::new(Some("vxlan-tunnel-addr-n1"), tunnel));
    let other = world.add_pod("n2", "other");
    world.nodes.kubernetes.remove("n1");
    assert_eq!(world.collect(), [], "a pod of the node still exists");
    world.lose_pod(&pod("web"));
    let claims = world.garbage.scan(&world.pods, &world.nodes, world.now);
    assert!(claims.iter().all(|claim| claim.absent.contains(&AbsenceSubject::node("n1"))), "{claims:?}");
    assert_eq!(
        world.garbage.references(),
        &ReferenceCounts::from([(SubjectClass::Pods, 2), (SubjectClass::Nodes, 2)])
    );
    let released = world.collect();
    assert_eq!(released.len(), 2, "{released:?}");
    assert!(!world.assigned().contains(&device), "the tunnel address of the node is released too");
    let actions = world.collect();
    assert!(
        matches!(&actions[..], [GarbageAction::ReleaseBlock { owner, .. }] if owner.name == "n1"),
        "{actions:?}"
    );
    assert_eq!(world.assigned(), [other].into());
    // An affinity whose block was never created is released too.
    world.garbage.put_affinity("n1", cidr(77), world.now);
    assert_eq!(
        world.collect(),
        [GarbageAction::ReleaseBlock { owner: BlockOwner::host("n1"), cidr: cidr(77) }]
    );
    assert_eq!(world.collect(), []);
}

#[test]
fn addresses_of_other_holders_are_kept() {
    let mut world = GarbageTestWorld::new(&["n1"]);
    let holder = |handle: Option<&str>, attributes: &[(&str, &str)]| {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        AddressHolder::new(handle, attributes.iter().map(own).collect())
    };
    let on_gone = (attribute::NODE_ATTRIBUTE, "gone");
    let of_pod = [(attribute::POD_ATTRIBUTE, "p"), (attribute::NAMESPACE_ATTRIBUTE, "ns"), on_gone];
    for holder in [
        holder(None, &of_pod),
        holder(Some(WINDOWS_RESERVED_HANDLE), &of_pod),
        holder(Some("lb-1"), &[(attribute::TYPE_ATTRIBUTE, "LoadBalancer"), on_gone]),
        holder(Some("podman.1"), &[on_gone]),
        holder(Some("vm.1"), &[of_pod[0], of_pod[1], ("vmi-name", "vm"), on_gone]),
    ] {
        world.assign("n1", &holder);
    }
    for _ in 0..3 {
        assert_eq!(world.collect(), []);
        world.now += GRACE;
    }
}

#[test]
fn a_node_keeps_one_of_its_empty_blocks() {
    let mut world = GarbageTestWorld::new(&["n1"]);
    (0..3).for_each(|_| _ = world.claim_block("n1"));
    assert_eq!(world.collect(), []);
    world.now += GRACE + seconds(1);
    assert_eq!(world.collect().len(), 2);
    assert_eq!(world.blocks.len(), 1);
    world.now += GRACE * 3;
    assert_eq!(world.collect(), []);
    world.garbage.set_grace(None);
    world.claim_block("n1");
    world.now += GRACE * 3;
    assert_eq!(world.collect(), [], "without a grace period nothing of an existing node is released");
}

#[test]
fn scans_come_when_something_may_be_found() {
    let mut world = GarbageTestWorld::new(&["n1"]);
    world.add_pod("n1", "web");
    assert!(world.garbage.is_due(world.now));
    world.collect();
    assert!(
        !world.garbage.is_due(world.now + GRACE / 2 - seconds(1))
            && world.garbage.is_due(world.now + GRACE / 2)
    );
    world.lose_pod(&pod("web"));
    assert!(world.garbage.is_due(world.now + CHANGE_SCAN_DELAY));
    world.collect();
    world.now += GRACE / 2;
    world.collect();
    assert!(!world.garbage.is_due(world.now + GRACE / 2 - seconds(1)));
    assert!(world.garbage.is_due(world.now + GRACE / 2));
    world.garbage.scan_now();
    assert!(world.garbage.is_due(world.now));
}

/// In any order of events, all addresses in use are kept and all others are released.
#[test]
fn ten_thousand_random_steps() {
    let seed =
        std::env::var("TORTIE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(rand::random);
    println!("TORTIE_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let names = ["n1", "n2", "n3", "n4"];
    let mut world = GarbageTestWorld::new(&names);
    let (mut pods, mut leaked, mut released) = (0, 0, 0);
    for _ in 0..10_000 {
        let node = names[random.random_range(0..names.len())];
        let some = |world: &GarbageTestWorld, random: &mut StdRng| {
            let count = world.live.len();
            (count > 0).then(|| world.live.keys().nth(random.random_range(0..count)).unwrap().clone())
        };
        match random.random_range(0..100) {
            0..40 if world.nodes.kubernetes.contains(node) && world.live.len() < 60 => {
                pods += 1;
                world.add_pod(node, &format!("p{pods}"));
            }
            // The normal case: the CNI plugin releases the address.
            40..55 => {
                if let Some(pod) = some(&world, &mut random) {
                    let (_, address) = world.live[&pod];
                    world.lose_pod(&pod);
                    world.release(&[ReleaseRequest::of(address)]);
                }
            }
            55..70 => {
                if let Some(pod) = some(&world, &mut random) {
                    world.lose_pod(&pod);
                    leaked += 1;
                }
            }
            // The pod is received late or without its address.
            70..74 => {
                if let Some(pod) = some(&world, &mut random) {
                    let (node, address) = world.live[&pod].clone();
                    world.pods.put(&endpoint(&pod, &node, &[]));
                    world.collect();
                    world.pods.put(&endpoint(&pod, &node, &[address]));
                }
            }
            // A node is deleted, its pods follow, and no address is released.
            74..76 => {
                world.nodes.kubernetes.remove(node);
                world.garbage.scan_now();
                let own = world.live.iter().filter(|(_, (at, _))| at == node).map(|(pod, _)| pod.clone());
                for pod in own.collect::<Vec<_>>() {
                    if random.random_bool(0.5) {
                        world.collect();
                    }
                    world.lose_pod(&pod);
                    leaked += 1;
                }
            }
            76..80 => world.add_node(node),
            80..90 => world.now += seconds(random.random_range(1..600)),
            _ => {
                let actions = world.collect();
                released +=
                    actions.iter().filter(|action| matches!(action, GarbageAction::Release { .. })).count();
            }
        }
        let used: BTreeSet<IpAddr> = world.live.values().map(|(_, address)| *address).collect();
        assert!(used.is_subset(&world.assigned()), "an address in use was released");
        assert_eq!(used.len(), world.live.len(), "two pods have the same address");
    }
    for _ in 0..4 {
        world.collect();
        world.now += GRACE + seconds(1);
    }
    let used: BTreeSet<IpAddr> = world.live.values().map(|(_, address)| *address).collect();
    assert_eq!(world.assigned(), used, "leaked addresses are not released");
    assert_eq!(world.garbage.suspects(), 0);
    let owners: BTreeSet<&str> = world.blocks.values().filter_map(|block| Some(block.owner()?.1)).collect();
    assert!(owners.iter().all(|owner| world.nodes.kubernetes.contains(*owner)), "{owners:?}");
    assert!(
        pods > 1_000 && leaked > 500 && released > 300,
        "{pods} pods, {leaked} leaks, {released} released"
    );
}
