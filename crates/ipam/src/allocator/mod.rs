//! The address allocator of one host: applies the decisions of the pure modules to the store.
//!
//! Every change is an operation of ordered steps (see `operations`): wherever a process is killed, a handle references
//! every block in which it has an address. Every write is conditional on the revisions it is based on; a process that
//! loses a race reads again and retries, up to `MAX_RACE_ATTEMPTS` times.
//!
//! The blocks of the host are cached with their revisions. Assigning from them takes one transaction and no read; if
//! the cache is stale, the store refuses the write and the cache is corrected.

mod affinity;
mod auto;
mod batch;
mod borrow;
mod by_handle;
mod cache;
mod claim;
mod config;
mod queue;
mod release;
mod request;
mod specific;
mod tunnel;

pub use config::ConfigChange;
pub use release::ReleaseReport;
pub use request::{AssignError, AssignRequest, AssignedAddresses, DualStackAssignment, SpecificRequest};
pub use tunnel::TunnelPools;

use crate::facts::AllocatorInputs;
use crate::follow::InputWatcher;
use crate::owner::BlockOwner;
use crate::records::{ExecutionMode, IpamRecords};
use crate::{IpamError, IpamResult};
use cache::BlockCache;
use ipnet::IpNet;
use queue::RequestQueue;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::Mutex;
use tortie_model::StoreKey;
use tortie_store::operation::WrittenRevisions;
use tortie_store::{Revision, StoreClient};

/// Maximum number of attempts after lost races.
const MAX_RACE_ATTEMPTS: u32 = 100;

/// Assigns and releases addresses for one block owner.
#[derive(Debug)]
pub struct Allocator {
    records: IpamRecords,
    owner: BlockOwner,
    source: AllocatorInputSource,
    in_use: Option<Arc<dyn AddressesInUse>>,
    /// Locked during a change, so that requests on one host do not race with each other.
    cache: Mutex<BlockCache>,
    queue: RequestQueue,
}

/// Addresses known to be in use on this host. The store may not know them, for example after a restore from a backup.
pub trait AddressesInUse: std::fmt::Debug + Send + Sync {
    fn addresses(&self) -> Vec<IpAddr>;

    /// Returns whether the address is used by a handle other than this one.
    fn is_held_by_another(&self, address: IpAddr, handle: Option<&str>) -> bool;
}

/// Source of the pools, the settings and the node labels.
#[derive(Debug)]
enum AllocatorInputSource {
    /// Read for each request.
    Store,
    Follower(InputWatcher),
}

impl Allocator {
    /// Creates an allocator that reads pools, settings and the node for each request; for processes with few requests.
    pub fn new(client: StoreClient, owner: BlockOwner) -> Allocator {
        Allocator::over(IpamRecords::new(client), owner, AllocatorInputSource::Store)
    }

    /// Creates an allocator that watches pools, settings and the node; for daemons. Requires a tokio runtime.
    pub fn following(client: StoreClient, owner: BlockOwner) -> Allocator {
        let follower = InputWatcher::start(&client, &owner);
        Allocator::over(IpamRecords::new(client), owner, AllocatorInputSource::Follower(follower))
    }

    /// Uses the given way to execute operations instead of the best one that the store offers.
    pub fn with_mode(self, mode: ExecutionMode) -> Allocator {
        Allocator { records: self.records.with_mode(mode), ..self }
    }

    /// Never assigns the addresses that `in_use` reports.
    pub fn avoiding(self, in_use: Arc<dyn AddressesInUse>) -> Allocator {
        Allocator { in_use: Some(in_use), ..self }
    }

    fn over(records: IpamRecords, owner: BlockOwner, source: AllocatorInputSource) -> Allocator {
        Allocator {
            records,
            owner,
            source,
            in_use: None,
            cache: Mutex::default(),
            queue: RequestQueue::default(),
        }
    }

    pub fn owner(&self) -> &BlockOwner {
        &self.owner
    }

    pub fn records(&self) -> &IpamRecords {
        &self.records
    }

    /// Returns the number of requests sent to the store so far, without watches.
    pub fn operations(&self) -> u64 {
        self.records.operations()
    }

    /// Returns whether requests can be batched. This needs transactions, and pools that are known without a read.
    fn batches(&self) -> bool {
        matches!(self.source, AllocatorInputSource::Follower(_))
            && self.records.mode() == ExecutionMode::Transaction
    }

    async fn facts(&self) -> IpamResult<Arc<AllocatorInputs>> {
        let facts = match &self.source {
            AllocatorInputSource::Follower(follower) => follower.facts().await?,
            AllocatorInputSource::Store => Arc::new(AllocatorInputs::load(&self.records, &self.owner).await?),
        };
        Ok(self.without_in_use(facts))
    }

    /// Treats the addresses in use as reserved.
    fn without_in_use(&self, facts: Arc<AllocatorInputs>) -> Arc<AllocatorInputs> {
        let in_use = self.in_use.as_ref().map(|in_use| in_use.addresses()).unwrap_or_default();
        if in_use.is_empty() {
            return facts;
        }
        let reservations = facts.reservations.and(in_use.into_iter().map(IpNet::from));
        Arc::new(AllocatorInputs { reservations, ..AllocatorInputs::clone(&facts) })
    }

    /// Reads the facts from the store, in case the watches lag behind. Returns `None` if they are the known ones.
    async fn later_facts(&self, known: &AllocatorInputs) -> IpamResult<Option<Arc<AllocatorInputs>>> {
        if !matches!(self.source, AllocatorInputSource::Follower(_)) {
            return Ok(None);
        }
        let facts = Arc::new(AllocatorInputs::load(&self.records, &self.owner).await?);
        let facts = self.without_in_use(facts);
        Ok((*facts != *known).then_some(facts))
    }
}

/// Returns the revision at which an operation has written an entry.
fn stands_at(written: &WrittenRevisions, key: &StoreKey) -> IpamResult<Revision> {
    written.revision(key).ok_or_else(|| {
        let text = format!("the datastore did not say at which revision it wrote {key}");
        IpamError::Store(tortie_store::StoreError::Datastore(text))
    })
}
