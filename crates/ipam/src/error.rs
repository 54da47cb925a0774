//! Errors of address management, with Calico's wording where Calico has the same error.

use crate::pool::AddressUse;
use ipnet::IpNet;
use std::net::IpAddr;
use tortie_model::ipam::block::BlockError;

#[derive(Debug, thiserror::Error)]
pub enum IpamError {
    #[error(transparent)]
    Store(#[from] tortie_store::StoreError),
    #[error(transparent)]
    Block(#[from] BlockError),
    #[error("cannot find a qualified ippool for IPv{version}")]
    NoEnabledPool { version: u8 },
    #[error("cannot find a qualified ippool for IPv{version} with allowed use {intended}")]
    NoPoolForUse { version: u8, intended: AddressUse },
    #[error("the given pool ({cidr}) does not exist, or is not enabled")]
    UnknownPool { cidr: IpNet },
    #[error("no configured Calico pools for node {node}")]
    NoPoolForNode { node: String },
    #[error("cannot allocate new block due to per host block limit ({limit} blocks)")]
    BlockLimit { limit: u32 },
    #[error("failed to find or claim a block: automatic allocation of blocks is switched off")]
    NoClaimsAllowed,
    #[error("Max retries hit - excessive concurrent IPAM requests")]
    TooManyRetries,
    #[error("block {block} has been claimed by {owner}, not {wanted}")]
    ClaimConflict { block: IpNet, owner: String, wanted: String },
    #[error("block {block} is not empty")]
    NotEmpty { block: IpNet },
    #[error("The provided IP address {address} is not in a configured pool")]
    NotInPool { address: IpAddr },
    #[error("the pool of {address} does not allow the use {intended}")]
    UseNotAllowed { address: IpAddr, intended: AddressUse },
    #[error("strict affinity is on and block {block} does not belong to {wanted}")]
    StrictAffinity { block: IpNet, wanted: String },
    #[error("handle {handle} may have at most {limit} IPv{version} addresses")]
    HandleLimit { handle: String, version: u8, limit: u32 },
    #[error("resource does not exist: {id} with error: {reason}")]
    DoesNotExist { id: String, reason: String },
    #[error("{0}")]
    BadConfig(String),
    #[error("{reason}")]
    Exhausted { reason: String },
}

pub type IpamResult<T> = std::result::Result<T, IpamError>;
