//! The blocks of this host as last seen: the memory that makes an allocation cost one transaction.

use super::{Allocator, MAX_ATTEMPTS};
use crate::handle::HandleRecord;
use crate::ledger::{Commit, Standing, affinity_key, create_block, update_block};
use crate::owner::{HostReserved, Owner};
use crate::{Error, Result, block, space};
use ipnet::IpNet;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::net::IpAddr;
use tortie_model::ipam::{AffinityState, Block, BlockAffinity};
use tortie_model::{Key, Value};
use tortie_store::Change;

/// One claim of the host on a block.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub cidr: IpNet,
    pub affinity: Standing<BlockAffinity>,
    pub block: Seen,
}

/// What is known of the block itself.
#[derive(Clone, Debug)]
pub(super) enum Seen {
    NotYet,
    Absent,
    At(Box<Standing<Block>>),
}

/// Handles remembered at most; what others released stays in memory until there are this many.
const MAX_HANDLES: usize = 4096;

/// Claims by family, in the order of their keys; `None` until read. And the handles written last, which will be
/// wanted when their addresses come back.
#[derive(Debug, Default)]
pub(super) struct Owned {
    v4: Option<Vec<Claim>>,
    v6: Option<Vec<Claim>>,
    handles: BTreeMap<String, HandleRecord>,
}

impl Seen {
    pub fn at(block: Standing<Block>) -> Seen {
        Seen::At(Box::new(block))
    }
}

impl Owned {
    pub fn claims(&mut self, version: u8) -> &mut Option<Vec<Claim>> {
        if version == 4 { &mut self.v4 } else { &mut self.v6 }
    }

    fn find(&mut self, cidr: IpNet) -> Option<&mut Claim> {
        self.claims(space::version(&cidr)).as_mut()?.iter_mut().find(|claim| claim.cidr == cidr)
    }

    /// The block, if its content is remembered.
    pub fn block(&mut self, cidr: IpNet) -> Option<Standing<Block>> {
        match &self.find(cidr)?.block {
            Seen::At(block) => Some(Standing::clone(block)),
            Seen::NotYet | Seen::Absent => None,
        }
    }

    /// The remembered block an address is in.
    pub fn block_with(&mut self, address: IpAddr) -> Option<IpNet> {
        let claims = self.claims(space::version_of(address)).as_ref()?;
        claims.iter().map(|claim| claim.cidr).find(|cidr| cidr.contains(&address))
    }

    /// The block was written, or turned out to be something else.
    pub fn remember(&mut self, cidr: IpNet, block: Option<Standing<Block>>) {
        if let Some(claim) = self.find(cidr) {
            claim.block = block.map_or(Seen::NotYet, Seen::at);
        }
    }

    /// The claim may be gone or about to go; what is known of it is to be read again before it is used.
    pub fn doubt(&mut self, cidr: IpNet) {
        *self.claims(space::version(&cidr)) = None;
    }

    pub fn remember_handle(&mut self, record: HandleRecord) {
        if self.handles.len() >= MAX_HANDLES {
            self.handles.clear();
        }
        self.handles.insert(record.id.clone(), record);
    }

    /// The handle as last written, once: after that it is something else.
    pub fn take_handle(&mut self, id: &str) -> Option<HandleRecord> {
        self.handles.remove(id)
    }

    pub fn forget(&mut self, cidr: IpNet) {
        if let Some(claims) = self.claims(space::version(&cidr)) {
            claims.retain(|claim| claim.cidr != cidr);
        }
    }

    pub fn add(&mut self, claim: Claim) {
        self.forget(claim.cidr);
        if let Some(claims) = self.claims(space::version(&claim.cidr)) {
            claims.push(claim);
        }
    }
}

impl Claim {
    /// The condition that the claim still stands as we know it.
    pub fn keep(&self, owner: &Owner) -> Change {
        Change::Keep { key: affinity_key(owner, self.cidr), revision: self.affinity.revision.clone() }
    }

    fn set_state(&self, owner: &Owner, state: AffinityState) -> Change {
        if self.affinity.value.state == state {
            return self.keep(owner);
        }
        let value = BlockAffinity { state, ..self.affinity.value.clone() };
        Change::Update {
            key: affinity_key(owner, self.cidr),
            value: Value::BlockAffinity(value),
            revision: self.affinity.revision.clone(),
        }
    }
}

impl Allocator {
    pub(super) async fn load_claims(&self, owned: &mut Owned, version: u8) -> Result<()> {
        let found = self.ledger.affinities(&self.owner, Some(version)).await?;
        let claim = |(cidr, affinity)| Claim { cidr, affinity, block: Seen::NotYet };
        *owned.claims(version) = Some(found.into_iter().map(claim).collect());
        Ok(())
    }

    /// Makes sure that a claim is confirmed and its block exists and is ours. `None` if the block is not, after
    /// withdrawing the claim.
    pub(super) async fn resolve(
        &self,
        claim: &mut Claim,
        reserved: Option<&HostReserved>,
        now: Timestamp,
    ) -> Result<Option<Standing<Block>>> {
        for _ in 0..MAX_ATTEMPTS {
            if let Seen::NotYet = claim.block {
                claim.block = self.ledger.block(claim.cidr).await?.map_or(Seen::Absent, Seen::at);
            }
            let confirm = claim.set_state(&self.owner, AffinityState::Confirmed);
            let (changes, block) = match &claim.block {
                Seen::At(found) if !block::belongs_to(&found.value, &self.owner) => {
                    return self.withdraw(claim).await.map(|()| None);
                }
                Seen::At(found) if claim.affinity.value.state == AffinityState::Confirmed => {
                    return Ok(Some(Standing::clone(found)));
                }
                Seen::At(found) => {
                    // The new sequence number tells rivals that release the block that it is wanted again.
                    let mut block = found.value.clone();
                    block::advance(&mut block);
                    (vec![confirm, update_block(&block, found.revision.clone())], block)
                }
                Seen::NotYet | Seen::Absent => {
                    let block = block::fresh(claim.cidr, &self.owner, reserved, now);
                    (vec![confirm, create_block(&block)], block)
                }
            };
            match self.ledger.commit(&changes).await? {
                Commit::Done(revision) => {
                    if matches!(changes.first(), Some(Change::Update { .. })) {
                        claim.affinity.revision = revision.clone();
                    }
                    claim.affinity.value.state = AffinityState::Confirmed;
                    let standing = Standing { value: block, revision };
                    claim.block = Seen::at(standing.clone());
                    return Ok(Some(standing));
                }
                Commit::Refused(key) => {
                    if !self.look_again(claim, &key).await? {
                        return Ok(None);
                    }
                }
            }
        }
        Err(Error::TooManyRetries)
    }

    /// Reads again what was not as expected; `false` if the claim is gone.
    pub(super) async fn look_again(&self, claim: &mut Claim, refused: &Key) -> Result<bool> {
        match refused {
            Key::Block { .. } => claim.block = Seen::NotYet,
            Key::BlockAffinity { .. } => match self.ledger.affinity(&self.owner, claim.cidr).await? {
                Some(affinity) => claim.affinity = affinity,
                None => return Ok(false),
            },
            _ => {}
        }
        Ok(true)
    }

    /// Deletes a claim on a block that belongs to somebody else. That it is gone already is as good.
    async fn withdraw(&self, claim: &Claim) -> Result<()> {
        let key = affinity_key(&self.owner, claim.cidr);
        self.ledger.commit(&[Change::Delete { key, revision: claim.affinity.revision.clone() }]).await?;
        Ok(())
    }
}
