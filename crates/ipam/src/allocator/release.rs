//! Taking addresses back, by address or by handle.

use super::owned::Owned;
use super::plan::Work;
use super::{Allocator, MAX_ATTEMPTS};
use crate::block::{self, Release, Released};
use crate::facts::Facts;
use crate::handle::HandleRecord;
use crate::ledger::{Commit, Standing, delete_block, handle_key, update_block};
use crate::{Error, Result, pool, space};
use ipnet::IpNet;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::net::IpAddr;
use tokio::sync::oneshot;
use tortie_model::ipam::{Block, Handle};
use tortie_model::key::AffinityType;
use tortie_model::selector::Selector;
use tortie_model::{Key, Kind};
use tortie_store::{Change, Revision};

/// A store takes 128 steps in one transaction; each address may bring a handle with it.
const PER_TRANSACTION: usize = 100;
/// From this many addresses on, all handles are read at once.
const MANY: usize = 3;

/// What became of a list of addresses.
#[derive(Debug, Default)]
pub struct ReleaseReport {
    pub released: Vec<IpAddr>,
    /// Were not assigned, or cool down already.
    pub unallocated: Vec<IpAddr>,
    /// The first failure; other blocks are not affected by it.
    pub error: Option<Error>,
}

type Handles = BTreeMap<String, HandleRecord>;

impl Allocator {
    /// Gives back addresses, those of one block together: all of them or none.
    pub async fn release(&self, wanted: &[Release]) -> Result<ReleaseReport> {
        let facts = self.facts().await?;
        let mut owned = self.owned.lock().await;
        let mut handles = Handles::new();
        let listed = wanted.len() >= MANY;
        if listed {
            let record = |(id, standing): (String, Standing<Handle>)| {
                (id.clone(), HandleRecord::new(&id, Some(standing)))
            };
            handles = self.ledger.handles().await?.into_iter().map(record).collect();
        }
        let mut report = ReleaseReport::default();
        let mut by_block: BTreeMap<IpNet, Vec<Release>> = BTreeMap::new();
        for release in wanted {
            match self.block_of(&facts, &mut owned, release.address).await? {
                Some(cidr) => by_block.entry(cidr).or_default().push(release.clone()),
                None => report.unallocated.push(release.address),
            }
        }
        for (cidr, mut wanted) in by_block {
            let mut done = Released::default();
            let result =
                self.release_in(cidr, &mut wanted, &facts, &mut owned, &mut handles, &mut done).await;
            report.released.append(&mut done.addresses);
            report.unallocated.append(&mut done.unallocated);
            if let Err(error) = result {
                report.error.get_or_insert(error);
            }
        }
        Ok(report)
    }

    /// The block an address is in: by the pools, disabled ones too, or by looking through the blocks.
    pub(super) async fn block_of(
        &self,
        facts: &Facts,
        owned: &mut Owned,
        address: IpAddr,
    ) -> Result<Option<IpNet>> {
        if let Some(cidr) = owned.block_with(address) {
            return Ok(Some(cidr));
        }
        if let Some(pool) = pool::containing(&facts.pools, address, false) {
            return Ok(pool.block_of(address));
        }
        let cidrs = self.ledger.block_cidrs(space::version_of(address)).await?;
        Ok(cidrs.into_iter().find(|cidr| cidr.contains(&address)))
    }

    async fn release_in(
        &self,
        cidr: IpNet,
        wanted: &mut Vec<Release>,
        facts: &Facts,
        owned: &mut Owned,
        handles: &mut Handles,
        done: &mut Released,
    ) -> Result<()> {
        for _ in 0..MAX_ATTEMPTS {
            let remembered = owned.block(cidr);
            let from_memory = remembered.is_some();
            let standing = match remembered {
                Some(standing) => Some(standing),
                None => self.ledger.block(cidr).await?,
            };
            let now = Timestamp::now();
            // Conditions are checked for all, also when only some go in this transaction.
            let all = standing.as_ref().map(|s| block::release(&mut s.value.clone(), wanted, now));
            let all = all.unwrap_or_else(|| {
                let unallocated = wanted.iter().map(|release| release.address).collect();
                Ok(Released { unallocated, ..Released::default() })
            });
            if from_memory && all.as_ref().map_or(true, |all| !all.unallocated.is_empty()) {
                // Only a fresh look can tell that an address is not there.
                owned.remember(cidr, None);
                continue;
            }
            let all = all?;
            let (Some(standing), false) = (standing, all.addresses.is_empty()) else {
                done.unallocated.extend(all.unallocated);
                return Ok(());
            };
            let batch: Vec<Release> = wanted
                .iter()
                .filter(|release| all.addresses.contains(&release.address))
                .take(PER_TRANSACTION)
                .cloned()
                .collect();
            let mut next = standing.value.clone();
            let released = block::release(&mut next, &batch, now)?;
            let mut changes = vec![write_back(&mut next, standing.revision.clone(), facts, now)];
            for (id, count) in &released.handles {
                if !handles.contains_key(id) {
                    handles.insert(id.clone(), HandleRecord::new(id, self.ledger.handle(id).await?));
                }
                changes.extend(handles.get(id).and_then(|record| record.subtract(cidr, *count)));
            }
            match self.ledger.commit(&changes).await? {
                Commit::Done(revision) => {
                    for id in released.handles.keys() {
                        handles.remove(id);
                    }
                    wanted.retain(|release| !released.addresses.contains(&release.address));
                    done.addresses.extend(released.addresses);
                    self.written(next, revision, &changes, facts, owned).await;
                    if wanted.is_empty() {
                        return Ok(());
                    }
                }
                Commit::Refused(Key::Handle { id }) => {
                    handles.remove(&id);
                }
                Commit::Refused(_) => owned.remember(cidr, None),
            }
        }
        Err(Error::TooManyRetries)
    }

    /// Gives back everything a handle has, and the handle. Returns the addresses.
    pub async fn release_by_handle(&self, id: &str) -> Result<Vec<IpAddr>> {
        if self.follower.is_some() {
            let (sender, answer) = oneshot::channel();
            let work = Work::Release { handle: id.to_owned(), record: None, answer: sender };
            if let Some(released) = self.together(work, answer).await? {
                return Ok(released);
            }
        }
        let mut owned = self.owned.lock().await;
        self.release_handle(id, &mut owned).await
    }

    pub(super) async fn release_handle(&self, id: &str, owned: &mut Owned) -> Result<Vec<IpAddr>> {
        let facts = self.facts().await?;
        let mut released = Vec::new();
        let mut record = owned.take_handle(id);
        let mut existed = false;
        for _ in 0..MAX_ATTEMPTS {
            if record.is_none() {
                let standing = self.ledger.handle(id).await?;
                record = standing.is_some().then(|| HandleRecord::new(id, standing));
                existed |= record.is_some();
            }
            let Some(handle) = &record else {
                if existed {
                    return Ok(released);
                }
                let id = handle_key(id).to_string();
                return Err(Error::DoesNotExist { id, reason: "the handle has no addresses".to_owned() });
            };
            let now = Timestamp::now();
            let blocks: Vec<String> = handle.blocks().take(PER_TRANSACTION).map(str::to_owned).collect();
            let mut changes: Vec<Change> = handle.leave(&blocks).into_iter().collect();
            let mut written = Vec::new();
            let mut addresses = Vec::new();
            for cidr in blocks.iter().filter_map(|cidr| cidr.parse::<IpNet>().ok()) {
                let Some(standing) = self.block_with_handle(cidr, id, owned).await? else { continue };
                let mut next = standing.value;
                let given_back = block::release_handle(&mut next, id, now);
                if given_back.is_empty() {
                    // The count was wrong; it may only be put right if nothing is being added meanwhile.
                    changes
                        .push(Change::Keep { key: Key::Block { cidr }, revision: standing.revision.clone() });
                } else {
                    changes.push(write_back(&mut next, standing.revision.clone(), &facts, now));
                    addresses.extend(given_back);
                    written.push(next);
                }
            }
            match self.ledger.commit(&changes).await? {
                Commit::Done(revision) => {
                    existed = true;
                    released.append(&mut addresses);
                    for block in written {
                        self.written(block, revision.clone(), &changes, &facts, owned).await;
                    }
                    if matches!(changes.first(), Some(Change::Delete { .. })) {
                        return Ok(released);
                    }
                    record = None;
                }
                Commit::Refused(Key::Block { cidr }) => owned.remember(cidr, None),
                Commit::Refused(_) => record = None,
            }
        }
        Err(Error::TooManyRetries)
    }

    /// The block as remembered if it knows the handle, else as it stands.
    async fn block_with_handle(
        &self,
        cidr: IpNet,
        id: &str,
        owned: &mut Owned,
    ) -> Result<Option<Standing<Block>>> {
        let remembered = owned.block(cidr);
        match remembered.filter(|block| !block::addresses_of(&block.value, id).is_empty()) {
            Some(standing) => Ok(Some(standing)),
            None => {
                let standing = self.ledger.block(cidr).await?;
                owned.remember(cidr, standing.clone());
                Ok(standing)
            }
        }
    }

    /// After a block was written: remembers it, and gives it up if its pool is no longer for its host.
    pub(super) async fn written(
        &self,
        block: Block,
        revision: Revision,
        changes: &[Change],
        facts: &Facts,
        owned: &mut Owned,
    ) {
        let cidr = block.cidr;
        let deleted = changes.iter().any(
            |change| matches!(change, Change::Delete { key: Key::Block { cidr: gone }, .. } if *gone == cidr),
        );
        if deleted {
            owned.forget(cidr);
            return;
        }
        let empty = block::is_empty(&block);
        let owner = block.owner().map(|(affinity, name)| (affinity, name.to_owned()));
        owned.remember(cidr, Some(Standing { value: block, revision }));
        let (true, Some((AffinityType::Host, host))) = (empty, owner) else { return };
        match self.return_if_unselected(cidr, &host, facts).await {
            Ok(true) => owned.forget(cidr),
            Ok(false) => {}
            Err(error) => tracing::debug!(%cidr, host, %error, "kept an empty block"),
        }
    }

    async fn return_if_unselected(&self, cidr: IpNet, host: &str, facts: &Facts) -> Result<bool> {
        let Some(pool) = pool::containing(&facts.pools, cidr.network(), true) else { return Ok(false) };
        if pool.node_selector == Selector::parse("").ok() {
            return Ok(false);
        }
        let owner = crate::owner::Owner::host(host);
        let labels = if owner == self.owner {
            facts.node_labels.clone()
        } else {
            self.ledger.resource(Kind::Node, host).await?.map(|node| node.metadata().labels.clone())
        };
        if labels.is_none_or(|labels| pool.selects_node(&labels)) {
            return Ok(false);
        }
        self.release_claim(&owner, cidr, true, None).await.map(|()| true)
    }
}

/// The block as it goes back: what has cooled down is free, and one that is empty and nobody's is deleted.
fn write_back(block: &mut Block, revision: Revision, facts: &Facts, now: Timestamp) -> Change {
    block::thaw(block, facts.config.ip_cooldown_seconds, now);
    if block.affinity.is_none() && block::is_empty(block) {
        return delete_block(block.cidr, revision);
    }
    block::advance(block);
    update_block(block, revision)
}
