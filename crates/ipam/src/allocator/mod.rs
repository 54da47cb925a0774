//! The allocator of one host: decisions of the core, carried out on the store.
//!
//! A block and the handles it concerns always change in one transaction, so whatever is killed whenever, a handle
//! never names an address that is not taken, and no address is taken that its handle does not name. Every write
//! names the revisions it is based on; whoever loses a race reads again and retries, a bounded number of times.
//!
//! The blocks of the host are remembered with their revisions. Handing out from them takes one transaction and no
//! read; if the memory is wrong, the store refuses the transaction and the memory is corrected.

mod affinity;
mod auto;
mod borrow;
mod claim;
mod config;
mod owned;
mod plan;
mod release;
mod request;
mod specific;
mod together;
mod tunnel;

pub use config::ConfigChange;
pub use release::ReleaseReport;
pub use request::{AssignError, Assigned, Assignments, Request, SpecificRequest};
pub use tunnel::{Tunnel, TunnelPools};

use crate::Result;
use crate::facts::Facts;
use crate::follow::Follower;
use crate::ledger::Ledger;
use crate::owner::Owner;
use owned::Owned;
use std::sync::Arc;
use together::Queue;
use tokio::sync::Mutex;
use tortie_store::Client;

/// How often a lost race is run again.
const MAX_ATTEMPTS: u32 = 100;

/// Hands out and takes back addresses for one owner of blocks.
#[derive(Debug)]
pub struct Allocator {
    ledger: Ledger,
    owner: Owner,
    follower: Option<Follower>,
    /// Held during a change, so that requests on one host do not race each other.
    owned: Mutex<Owned>,
    queue: Queue,
}

impl Allocator {
    /// Reads pools, settings and the node for every request: for processes that make few.
    pub fn new(client: Client, owner: Owner) -> Allocator {
        Allocator {
            ledger: Ledger::new(client),
            owner,
            follower: None,
            owned: Mutex::default(),
            queue: Queue::default(),
        }
    }

    /// Follows pools, settings and the node: for a daemon. Needs a tokio runtime.
    pub fn following(client: Client, owner: Owner) -> Allocator {
        let mut allocator = Allocator::new(client, owner);
        allocator.follower = Some(Follower::start(&allocator.ledger, &allocator.owner));
        allocator
    }

    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Requests made to the store so far, watches not counted.
    pub fn operations(&self) -> u64 {
        self.ledger.operations()
    }

    async fn facts(&self) -> Result<Arc<Facts>> {
        match &self.follower {
            Some(follower) => follower.facts().await,
            None => Ok(Arc::new(Facts::load(&self.ledger, &self.owner).await?)),
        }
    }

    /// Facts that may have changed without our having heard of it yet; `None` if they have not.
    async fn later_facts(&self, known: &Facts) -> Result<Option<Arc<Facts>>> {
        if self.follower.is_none() {
            return Ok(None);
        }
        let facts = Facts::load(&self.ledger, &self.owner).await?;
        Ok((facts != *known).then(|| Arc::new(facts)))
    }
}
