//! Runs the allocators of a whole cluster, each with its own connection.

use serde_json::json;
use std::collections::BTreeMap;
use std::error::Error;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tortie_ipam::reservation::ReservedRanges;
use tortie_ipam::{AddressHolder, Allocator, AssignRequest, BlockOwner, block, space};
use tortie_model::{Kind, Resource, StoreKey, StoreValue};
use tortie_store::{EntryChange, StoreClient, StoreConfig};

type AllocatorLoadResult<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Number of addresses assigned or released, with the elapsed time and the requests to the datastore.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllocationPhase {
    addresses: u64,
    requests: u64,
    time: Duration,
}

pub struct AllocatorCluster {
    client: StoreClient,
    url: String,
    pool: ipnet::IpNet,
    block_size: u8,
    allocators: Vec<Arc<Allocator>>,
}

impl AllocationPhase {
    pub fn add(&mut self, other: AllocationPhase) {
        self.addresses += other.addresses;
        self.requests += other.requests;
        self.time += other.time;
    }

    pub fn rate(&self) -> f64 {
        self.addresses as f64 / self.time.as_secs_f64()
    }

    /// Returns the requests to the datastore per address.
    pub fn operations(&self) -> f64 {
        self.requests as f64 / self.addresses as f64
    }
}

impl AllocatorCluster {
    pub async fn new(
        url: &str,
        nodes: usize,
        pool: &str,
        block_size: u8,
    ) -> AllocatorLoadResult<AllocatorCluster> {
        let client = connect(url).await?;
        let spec = json!({"spec": {"cidr": pool, "blockSize": block_size}});
        put(&client, Kind::IPPool, "pool", spec).await?;
        let mut cluster = AllocatorCluster {
            client,
            url: url.to_owned(),
            pool: pool.parse()?,
            block_size,
            allocators: Vec::new(),
        };
        for n in 0..nodes {
            let allocator = cluster.node(&format!("node-{n}")).await?;
            cluster.allocators.push(allocator);
        }
        Ok(cluster)
    }

    async fn node(&self, name: &str) -> AllocatorLoadResult<Arc<Allocator>> {
        put(&self.client, Kind::Node, name, json!({"spec": {}})).await?;
        let allocator = Allocator::following(connect(&self.url).await?, BlockOwner::host(name));
        // Makes the allocator load the cluster state, which is not part of the measurement.
        let _ = allocator.release_by_handle("nothing").await;
        Ok(Arc::new(allocator))
    }

    /// Assigns `each` addresses on every node concurrently, `at_once` of them in parallel per node.
    pub async fn take(
        &self,
        round: usize,
        each: usize,
        at_once: usize,
    ) -> AllocatorLoadResult<AllocationPhase> {
        self.phase(each, at_once, move |allocator, n| async move { take_one(&allocator, round, n).await })
            .await
    }

    pub async fn give_back(
        &self,
        round: usize,
        each: usize,
        at_once: usize,
    ) -> AllocatorLoadResult<AllocationPhase> {
        self.phase(each, at_once, move |allocator, n| async move {
            allocator.release_by_handle(&handle(&allocator, round, n)).await?;
            Ok(())
        })
        .await
    }

    async fn phase<F, W>(&self, each: usize, at_once: usize, work: F) -> AllocatorLoadResult<AllocationPhase>
    where
        F: Fn(Arc<Allocator>, usize) -> W + Clone + Send + 'static,
        W: Future<Output = AllocatorLoadResult<()>> + Send + 'static,
    {
        let requests = || self.allocators.iter().map(|allocator| allocator.operations()).sum::<u64>();
        let (before, start) = (requests(), Instant::now());
        let mut running: JoinSet<AllocatorLoadResult<()>> = JoinSet::new();
        for allocator in &self.allocators {
            for caller in 0..at_once {
                let (allocator, work) = (allocator.clone(), work.clone());
                running.spawn(async move {
                    for n in (caller..each).step_by(at_once) {
                        work(allocator.clone(), n).await?;
                    }
                    Ok(())
                });
            }
        }
        while let Some(done) = running.join_next().await {
            done??;
        }
        let time = start.elapsed();
        let addresses = (self.allocators.len() * each) as u64;
        Ok(AllocationPhase { addresses, requests: requests() - before, time })
    }

    /// Writes full blocks of other nodes at these positions in the pool.
    pub async fn fill(&self, places: Range<usize>) -> AllocatorLoadResult<()> {
        let now = jiff::Timestamp::now();
        let full = |place: usize| {
            let cidr = space::nth_block(&self.pool, self.block_size, place as u128)?;
            let mut full = block::fresh(cidr, &BlockOwner::host(&format!("far-{}", place / 10)), None, now);
            let holder = AddressHolder::new(Some(&format!("pod-{place}")), BTreeMap::new());
            block::allocate(&mut full, 64, &holder, &ReservedRanges::default());
            Some(EntryChange::Create { key: StoreKey::Block { cidr }, value: StoreValue::Block(full) })
        };
        let changes: Vec<EntryChange> = places.filter_map(full).collect();
        for batch in changes.chunks(100) {
            self.client.transact(batch).await?;
        }
        Ok(())
    }

    /// Times a new node's first address, its second, and a request to an exhausted pool. Removes the node's blocks
    /// afterwards.
    pub async fn newcomer(&self, blocks: usize, round: usize) -> AllocatorLoadResult<[Duration; 3]> {
        let name = format!("newcomer-{blocks}-{round}");
        let allocator = self.node(&name).await?;
        let start = Instant::now();
        take_one(&allocator, round, 0).await?;
        let first = start.elapsed();
        let start = Instant::now();
        take_one(&allocator, round, 1).await?;
        let next = start.elapsed();
        for n in 0..2 {
            allocator.release_by_handle(&handle(&allocator, round, n)).await?;
        }
        allocator.release_owner_affinities(allocator.owner(), None, true).await?;
        let exhausted = self.refusal(&name, blocks).await?;
        Ok([first, next, exhausted])
    }

    /// Returns the time until a request to a full pool is rejected. The pool consists of just the existing blocks.
    async fn refusal(&self, name: &str, blocks: usize) -> AllocatorLoadResult<Duration> {
        let mut prefix = self.block_size;
        while space::block_count(&ipnet::IpNet::new(self.pool.network(), prefix)?, self.block_size)
            < blocks as u128 / 2
        {
            prefix -= 1;
        }
        let full = json!({"spec": {"cidr": format!("{}/{prefix}", self.pool.network()), "blockSize": self.block_size}});
        put(&self.client, Kind::IPPool, "pool", full).await?;
        let allocator = Allocator::new(self.client.clone(), BlockOwner::host(name));
        let start = Instant::now();
        let refused =
            allocator.auto_assign(&request(name, "refused")).await.map_err(|failed| failed.error)?;
        let took = start.elapsed();
        if refused.v4.missing() != 1 {
            return Err("the pool was not full".into());
        }
        let whole = json!({"spec": {"cidr": self.pool.to_string(), "blockSize": self.block_size}});
        put(&self.client, Kind::IPPool, "pool", whole).await?;
        Ok(took)
    }
}

async fn take_one(allocator: &Allocator, round: usize, n: usize) -> AllocatorLoadResult<()> {
    let wanted = request(&allocator.owner().name, &handle(allocator, round, n));
    let assigned = allocator.auto_assign(&wanted).await.map_err(|failed| failed.error)?;
    match assigned.v4.shortfall() {
        None => Ok(()),
        Some(text) => Err(text.into()),
    }
}

fn handle(allocator: &Allocator, round: usize, n: usize) -> String {
    format!("{}.{round}-{n}", allocator.owner().name)
}

/// Builds the request that a pod's CNI ADD makes.
fn request(node: &str, handle: &str) -> AssignRequest {
    let words = [
        ("node", node),
        ("namespace", "prod"),
        ("pod", handle),
        ("timestamp", "2026-03-01 10:20:31 +0000 UTC"),
    ];
    let attributes = words.map(|(name, value)| (name.to_owned(), value.to_owned()));
    AssignRequest::new(AddressHolder::new(Some(handle), BTreeMap::from(attributes)), 1, 0)
}

async fn connect(url: &str) -> AllocatorLoadResult<StoreClient> {
    Ok(StoreClient::connect(&StoreConfig { etcd_endpoints: url.to_owned(), ..StoreConfig::default() })
        .await?)
}

async fn put(
    client: &StoreClient,
    kind: Kind,
    name: &str,
    mut object: serde_json::Value,
) -> AllocatorLoadResult<()> {
    object["metadata"] = json!({"name": name});
    let resource = Resource::from_store(kind, object)?;
    client.apply(&StoreKey::resource(kind, "", name), &StoreValue::Resource(resource), None).await?;
    Ok(())
}
