//! The address allocator of one host: applies the decisions of the pure modules to the store.
//!
//! Every change is an operation of ordered steps (see `operations`): wherever a process is killed, a handle references
//! every block in which it has an address. Every write is conditional on the revisions it is based on; a process that
//! loses a race reads again and retries, up to `MAX_ATTEMPTS` times.
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
pub use request::{AssignError, Assigned, Assignments, Request, SpecificRequest};
pub use tunnel::TunnelPools;

use crate::facts::Facts;
use crate::follow::Follower;
use crate::owner::Owner;
use crate::records::{Carrier, Records};
use crate::{Error, Result};
use cache::BlockCache;
use ipnet::IpNet;
use queue::Queue;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::Mutex;
use tortie_model::Key;
use tortie_store::operation::Written;
use tortie_store::{Client, Revision};

/// Maximum number of attempts after lost races.
const MAX_ATTEMPTS: u32 = 100;

/// Assigns and releases addresses for one block owner.
#[derive(Debug)]
pub struct Allocator {
    records: Records,
    owner: Owner,
    source: Source,
    in_use: Option<Arc<dyn InUse>>,
    /// Locked during a change, so that requests on one host do not race with each other.
    cache: Mutex<BlockCache>,
    queue: Queue,
}

/// Addresses known to be in use on this host. The store may not know them, for example after a restore from a backup.
pub trait InUse: std::fmt::Debug + Send + Sync {
    fn addresses(&self) -> Vec<IpAddr>;

    /// Returns whether the address is used by a handle other than this one.
    fn is_held_by_another(&self, address: IpAddr, handle: Option<&str>) -> bool;
}

/// Source of the pools, the settings and the node labels.
#[derive(Debug)]
enum Source {
    /// Read for each request.
    Store,
    Follower(Follower),
    #[cfg(test)]
    Given(Arc<Facts>),
}

impl Allocator {
    /// Creates an allocator that reads pools, settings and the node for each request; for processes with few requests.
    pub fn new(client: Client, owner: Owner) -> Allocator {
        Allocator::over(Records::new(client), owner, Source::Store)
    }

    /// Creates an allocator that watches pools, settings and the node; for daemons. Requires a tokio runtime.
    pub fn following(client: Client, owner: Owner) -> Allocator {
        let follower = Follower::start(&client, &owner);
        Allocator::over(Records::new(client), owner, Source::Follower(follower))
    }

    #[cfg(test)]
    pub(crate) fn simulated(records: Records, owner: Owner, facts: Arc<Facts>) -> Allocator {
        Allocator::over(records, owner, Source::Given(facts))
    }

    /// Uses the given way to execute operations instead of the best one that the store offers.
    pub fn carried_by(self, carrier: Carrier) -> Allocator {
        Allocator { records: self.records.carried_by(carrier), ..self }
    }

    /// Never assigns the addresses that `in_use` reports.
    pub fn avoiding(self, in_use: Arc<dyn InUse>) -> Allocator {
        Allocator { in_use: Some(in_use), ..self }
    }

    fn over(records: Records, owner: Owner, source: Source) -> Allocator {
        Allocator { records, owner, source, in_use: None, cache: Mutex::default(), queue: Queue::default() }
    }

    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    pub fn records(&self) -> &Records {
        &self.records
    }

    /// Returns the number of requests sent to the store so far, without watches.
    pub fn operations(&self) -> u64 {
        self.records.operations()
    }

    /// Returns whether requests can be batched. This needs transactions, and pools that are known without a read.
    fn batches(&self) -> bool {
        matches!(self.source, Source::Follower(_)) && self.records.carrier() == Carrier::Transaction
    }

    async fn facts(&self) -> Result<Arc<Facts>> {
        let facts = match &self.source {
            Source::Follower(follower) => follower.facts().await?,
            Source::Store => Arc::new(Facts::load(&self.records, &self.owner).await?),
            #[cfg(test)]
            Source::Given(facts) => facts.clone(),
        };
        Ok(self.without_in_use(facts))
    }

    /// Treats the addresses in use as reserved.
    fn without_in_use(&self, facts: Arc<Facts>) -> Arc<Facts> {
        let in_use = self.in_use.as_ref().map(|in_use| in_use.addresses()).unwrap_or_default();
        if in_use.is_empty() {
            return facts;
        }
        let reservations = facts.reservations.and(in_use.into_iter().map(IpNet::from));
        Arc::new(Facts { reservations, ..Facts::clone(&facts) })
    }

    /// Reads the facts from the store, in case the watches lag behind. Returns `None` if they are the known ones.
    async fn later_facts(&self, known: &Facts) -> Result<Option<Arc<Facts>>> {
        if !matches!(self.source, Source::Follower(_)) {
            return Ok(None);
        }
        let facts = Arc::new(Facts::load(&self.records, &self.owner).await?);
        let facts = self.without_in_use(facts);
        Ok((*facts != *known).then_some(facts))
    }
}

/// Returns the revision at which an operation has written an entry.
fn stands_at(written: &Written, key: &Key) -> Result<Revision> {
    written.revision(key).ok_or_else(|| {
        let text = format!("the datastore did not say at which revision it wrote {key}");
        Error::Store(tortie_store::Error::Datastore(text))
    })
}
