use super::*;
use serde_json::{Value as Json, json};
use tortie_ipam::AddressHolder;
use tortie_ipam::reservation::ReservedRanges;
use tortie_model::{Kind, Resource, StoreKey, StoreValue};

fn named(name: &str) -> LoadBalancerServiceName {
    LoadBalancerServiceName { namespace: "shop".into(), name: name.into() }
}

fn pool(name: &str, spec: Json) -> Option<AllocationPool> {
    let key = StoreKey::resource(Kind::IPPool, "", name);
    let text = json!({"metadata": {"name": name}, "spec": spec}).to_string();
    match StoreValue::decode(&key, text.as_bytes()).unwrap() {
        StoreValue::Resource(Resource::IPPool(pool)) => AllocationPool::of(&pool),
        other => panic!("{other:?}"),
    }
}

/// A datastore with one block of each pool, and the services of a cluster.
struct BalancerTestWorld {
    balancer: ServiceBalancer,
    blocks: BTreeMap<IpNet, AddressBlock>,
    mode: AssignIPs,
}

impl BalancerTestWorld {
    fn new() -> BalancerTestWorld {
        let mut world = BalancerTestWorld {
            balancer: ServiceBalancer::default(),
            blocks: BTreeMap::new(),
            mode: AssignIPs::AllServices,
        };
        world
            .pool("v4", json!({"cidr": "198.51.100.0/29", "blockSize": 29, "allowedUses": ["LoadBalancer"]}));
        world.pool("v6", json!({"cidr": "fd51::/125", "blockSize": 125, "allowedUses": ["LoadBalancer"]}));
        let manual = json!({"cidr": "203.0.113.0/29", "blockSize": 29, "allowedUses": ["LoadBalancer"],
            "assignmentMode": "Manual"});
        world.pool("manual", manual);
        world.pool("pods", json!({"cidr": "10.77.0.0/29", "blockSize": 29}));
        world
    }

    fn pool(&mut self, name: &str, spec: Json) {
        let cidr: IpNet = spec["cidr"].as_str().unwrap().parse().unwrap();
        self.balancer.put_pool(name, pool(name, spec));
        let block = block::fresh(cidr, &block_owner(), None, jiff::Timestamp::UNIX_EPOCH);
        self.blocks.insert(cidr, block);
    }

    fn service(&mut self, name: &str, change: impl FnOnce(&mut KubernetesService)) {
        let mut service = KubernetesService {
            uid: format!("uid-of-{name}"),
            form: ServiceType::LoadBalancer,
            ip_versions: vec![4],
            ..KubernetesService::default()
        };
        change(&mut service);
        self.balancer.put_service(named(name), service);
    }

    fn annotate(&mut self, name: &str, annotation: &str, value: &str) {
        let service = self.balancer.services.get_mut(&named(name)).unwrap();
        service.annotations.insert(annotation.to_owned(), value.to_owned());
    }

    /// Executes actions until none are left and returns their number.
    fn settle(&mut self) -> usize {
        for round in 0..10 {
            let actions = self.balancer.decide(Some(&self.mode));
            if actions.is_empty() {
                return round;
            }
            actions.into_iter().for_each(|claim| self.carry_out(claim.action));
        }
        panic!("there is no end to it: {:?}", self.balancer.decide(Some(&self.mode)));
    }

    fn carry_out(&mut self, action: BalancerAction) {
        match action {
            BalancerAction::Release(addresses) => {
                for release in addresses {
                    let block =
                        self.blocks.values_mut().find(|block| block.cidr.contains(&release.address)).unwrap();
                    block::release(block, &[release], jiff::Timestamp::UNIX_EPOCH).unwrap();
                    block::thaw(block, 0, jiff::Timestamp::UNIX_EPOCH);
                }
            }
            BalancerAction::Assign(wanted) => {
                let holder = AddressHolder::new(Some(&wanted.handle), wanted.attributes);
                match wanted.choice {
                    AddressChoice::Addresses(addresses) => addresses.into_iter().for_each(|address| {
                        let block =
                            self.blocks.values_mut().find(|block| block.cidr.contains(&address)).unwrap();
                        block::allocate_address(block, address, &holder).unwrap();
                    }),
                    AddressChoice::Any { v4, v6, v4_pools, v6_pools } => {
                        for (wanted, pools, subnet) in
                            [(v4, v4_pools, "198.51.100.0/29"), (v6, v6_pools, "fd51::/125")]
                        {
                            let cidr = pools.first().copied().unwrap_or_else(|| subnet.parse().unwrap());
                            if wanted {
                                let block = self.blocks.get_mut(&cidr).unwrap();
                                block::allocate(block, 1, &holder, &ReservedRanges::new([]));
                            }
                        }
                    }
                }
            }
            BalancerAction::Report { service, uid, addresses } => {
                let found = self.balancer.services.get_mut(&service).unwrap();
                assert_eq!(found.uid, uid);
                found.ingress_ips = addresses;
            }
        }
        self.blocks.values().for_each(|block| self.balancer.put_block(block));
    }

    fn status(&self, name: &str) -> Vec<String> {
        self.balancer.services[&named(name)].ingress_ips.iter().map(ToString::to_string).collect()
    }

    fn assigned(&self) -> usize {
        self.blocks.values().flat_map(block::allocations).count()
    }
}

#[test]
fn handles_are_those_of_the_reference() {
    let service = LoadBalancerServiceName { namespace: "prod".into(), name: "web".into() };
    let handle = derive_handle(&service, "7d9f2c1e-0b6a-4c55-9a3e-2f1b0c9d8e77");
    assert_eq!(handle, "lb-Ai9bAG5793fMMYlV1wyxspMMkqGHRgKjPqgyf9lOqE");
}

#[test]
fn services_get_and_release_addresses_of_each_family() {
    let mut world = BalancerTestWorld::new();
    world.service("web", |service| service.ip_versions = vec![4, 6]);
    world.service("other", |_| {});
    world.service("plain", |service| service.form = ServiceType::ClusterIP);
    world.settle();
    assert_eq!(world.status("web").len(), 2);
    assert_eq!(world.status("other").len(), 1);
    assert_eq!((world.status("plain").len(), world.assigned()), (0, 3));
    assert_eq!(world.settle(), 0, "nothing is done twice");
    // A user overwrites the status.
    world.service("web", |service| service.ip_versions = vec![4, 6]);
    world.settle();
    assert_eq!(world.status("web").len(), 2);
    world.balancer.remove_service(&named("web"));
    world.service("other", |service| service.load_balancer_class = Some("cloud".into()));
    world.settle();
    assert_eq!(world.assigned(), 0);
}

#[test]
fn a_service_of_the_same_name_is_another() {
    let mut world = BalancerTestWorld::new();
    world.service("web", |_| {});
    world.settle();
    world.service("web", |service| service.uid = "another".into());
    world.settle();
    assert_eq!((world.status("web").len(), world.assigned()), (1, 1));
}

#[test]
fn addresses_and_pools_may_be_asked_for() {
    let mut world = BalancerTestWorld::new();
    world.service("web", |_| {});
    world.annotate("web", ADDRESS_ANNOTATION, "[\"198.51.100.5\"]");
    world.settle();
    assert_eq!(world.status("web"), ["198.51.100.5"]);
    world.annotate("web", ADDRESS_ANNOTATION, "[\"198.51.100.6\"]");
    world.settle();
    assert_eq!(world.status("web"), ["198.51.100.6"]);
    world.service("manual", |_| {});
    world.annotate("manual", POOL_ANNOTATIONS[0], "[\"manual\"]");
    world.settle();
    assert!(world.status("manual")[0].starts_with("203.0.113."));
    // Without the annotation, the address comes from an automatically assigned pool.
    world.service("manual", |_| {});
    world.settle();
    assert!(world.status("manual")[0].starts_with("198.51.100."));
    world.service("fixed", |service| service.load_balancer_ip = Some("198.51.100.1".parse().unwrap()));
    world.settle();
    assert_eq!(world.status("fixed"), ["198.51.100.1"]);
    assert_eq!(world.assigned(), 3);
    for (name, value) in [(ADDRESS_ANNOTATION, "nonsense"), (POOL_ANNOTATIONS[0], "[\"none\"]")] {
        world.service("wrong", |_| {});
        world.annotate("wrong", name, value);
        world.settle();
        assert!(world.status("wrong").is_empty(), "who asks for something does not get something else");
    }
}

#[test]
fn only_services_that_ask_if_that_is_configured() {
    let mut world = BalancerTestWorld::new();
    world.mode = AssignIPs::RequestedServicesOnly;
    world.service("web", |_| {});
    world.service("asks", |_| {});
    world.annotate("asks", POOL_ANNOTATIONS[0], "[\"198.51.100.0/29\"]");
    world.service("class", |service| service.load_balancer_class = Some(LOAD_BALANCER_CLASS.into()));
    world.settle();
    assert_eq!(
        (world.status("web").len(), world.status("asks").len(), world.status("class").len()),
        (0, 1, 1)
    );
}

#[test]
fn without_a_pool_there_is_nothing_to_have() {
    let mut world = BalancerTestWorld::new();
    world.service("web", |_| {});
    world.settle();
    world.balancer.put_pool("v4", None);
    world.settle();
    assert_eq!((world.status("web").len(), world.assigned()), (0, 0));
    // A disabled pool assigns nothing new, and its existing addresses are kept.
    world.pool("v4", json!({"cidr": "198.51.100.0/29", "blockSize": 29, "allowedUses": ["LoadBalancer"]}));
    world.settle();
    let off = json!({"cidr": "198.51.100.0/29", "blockSize": 29, "allowedUses": ["LoadBalancer"], "disabled": true});
    world.balancer.put_pool("v4", pool("v4", off));
    world.service("late", |_| {});
    world.settle();
    assert_eq!((world.status("web").len(), world.status("late").len()), (1, 0));
    assert_eq!(world.balancer.decide(None), [], "a controller that is off does nothing");
}

/// Checks that an address which is in no known pool is released only once that is proven.
fn check_release_after(lose_pool: impl FnOnce(&mut BalancerTestWorld)) {
    let mut world = BalancerTestWorld::new();
    world.service("web", |_| {});
    world.settle();
    let address = world.status("web")[0].parse().unwrap();
    lose_pool(&mut world);
    assert_eq!(world.balancer.references()[&SubjectClass::PoolAddresses], 1);
    let claims = world.balancer.decide(Some(&world.mode));
    let subjects: Vec<AbsenceSubject> = claims.iter().flat_map(|claim| claim.absent.clone()).collect();
    assert_eq!((claims.len(), subjects), (1, vec![AbsenceSubject::PoolOfAddress { address }]));
    claims.into_iter().for_each(|claim| world.carry_out(claim.action));
    assert_eq!(world.assigned(), 0);
}

#[test]
fn a_pool_deleted_during_a_restart_is_noticed() {
    check_release_after(|world| {
        let services = std::mem::take(&mut world.balancer.services);
        world.balancer = ServiceBalancer { services, ..ServiceBalancer::default() };
        world.blocks.values().for_each(|block| world.balancer.put_block(block));
    });
}

#[test]
fn a_pool_recreated_with_another_network_is_noticed() {
    check_release_after(|world| {
        let other = json!({"cidr": "192.0.2.0/29", "blockSize": 29, "allowedUses": ["LoadBalancer"]});
        world.balancer.put_pool("v4", pool("v4", other));
    });
}

#[test]
fn a_pool_deleted_before_its_block_is_noticed() {
    check_release_after(|world| {
        world.blocks.keys().for_each(|cidr| world.balancer.remove_block(cidr));
        world.balancer.put_pool("v4", None);
        world.blocks.values().for_each(|block| world.balancer.put_block(block));
    });
}
