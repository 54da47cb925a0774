//! The allocator of one host: decisions of the core, carried out on the store.
//!
//! Every change is an operation of ordered steps (see `operations`): whatever is killed whenever, a handle names every block in
//! which it has an address. Every write names the revisions it is based on; whoever loses a race reads again and
//! retries, a bounded number of times.
//!
//! The blocks of the host are cached with their revisions. Handing out from them takes one transaction and no
//! read; if the cache is stale, the store refuses the write and the cache is corrected.

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

/// How often a lost race is run again.
const MAX_ATTEMPTS: u32 = 100;

/// Hands out and takes back addresses for one owner of blocks.
#[derive(Debug)]
pub struct Allocator {
    records: Records,
    owner: Owner,
    source: Source,
    in_use: Option<Arc<dyn InUse>>,
    /// Held during a change, so that requests on one host do not race each other.
    cache: Mutex<BlockCache>,
    queue: Queue,
}

/// What is known to be in use on this host, whatever the store says: it may have been restored from a backup.
pub trait InUse: std::fmt::Debug + Send + Sync {
    fn addresses(&self) -> Vec<IpAddr>;

    /// Whether somebody else than this handle has the address.
    fn is_held_by_another(&self, address: IpAddr, handle: Option<&str>) -> bool;
}

/// Where pools, settings and the node are known from.
#[derive(Debug)]
enum Source {
    /// Read for every request.
    Store,
    Follower(Follower),
    #[cfg(test)]
    Given(Arc<Facts>),
}

impl Allocator {
    /// Reads pools, settings and the node for every request: for processes that make few.
    pub fn new(client: Client, owner: Owner) -> Allocator {
        Allocator::over(Records::new(client), owner, Source::Store)
    }

    /// Follows pools, settings and the node: for a daemon. Needs a tokio runtime.
    pub fn following(client: Client, owner: Owner) -> Allocator {
        let follower = Follower::start(&client, &owner);
        Allocator::over(Records::new(client), owner, Source::Follower(follower))
    }

    #[cfg(test)]
    pub(crate) fn simulated(records: Records, owner: Owner, facts: Arc<Facts>) -> Allocator {
        Allocator::over(records, owner, Source::Given(facts))
    }

    /// Carries out its operations by the given carrier instead of the best one that the store has.
    pub fn carried_by(self, carrier: Carrier) -> Allocator {
        Allocator { records: self.records.carried_by(carrier), ..self }
    }

    /// Never hands out what is in use here.
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

    /// Requests made to the store so far, watches not counted.
    pub fn operations(&self) -> u64 {
        self.records.operations()
    }

    /// Requests can only be carried out together in a transaction, and only what is followed is known without asking.
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

    /// As if what is in use were reserved.
    fn without_in_use(&self, facts: Arc<Facts>) -> Arc<Facts> {
        let in_use = self.in_use.as_ref().map(|in_use| in_use.addresses()).unwrap_or_default();
        if in_use.is_empty() {
            return facts;
        }
        let reservations = facts.reservations.and(in_use.into_iter().map(IpNet::from));
        Arc::new(Facts { reservations, ..Facts::clone(&facts) })
    }

    /// Facts that may have changed without our having heard of it yet; `None` if they have not.
    async fn later_facts(&self, known: &Facts) -> Result<Option<Arc<Facts>>> {
        if !matches!(self.source, Source::Follower(_)) {
            return Ok(None);
        }
        let facts = Arc::new(Facts::load(&self.records, &self.owner).await?);
        let facts = self.without_in_use(facts);
        Ok((*facts != *known).then_some(facts))
    }
}

/// Where an entry stands that an operation has written.
fn stands_at(written: &Written, key: &Key) -> Result<Revision> {
    written.revision(key).ok_or_else(|| {
        let text = format!("the datastore did not say at which revision it wrote {key}");
        Error::Store(tortie_store::Error::Datastore(text))
    })
}
