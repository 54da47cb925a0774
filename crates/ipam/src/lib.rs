#![doc = include_str!("../README.md")]

pub mod allocator;
pub mod audit;
pub mod error;
pub mod facts;
mod follow;
mod handle;
mod operations;
pub mod pick;
pub mod pool;
pub mod records;
#[cfg(test)]
mod simulation;
pub mod usage;

pub use allocator::{
    AddressesInUse, Allocator, AssignError, AssignRequest, AssignedAddresses, ConfigChange,
    DualStackAssignment, ReleaseReport, SpecificRequest, TunnelPools,
};
pub use error::{IpamError, IpamResult};
pub use records::{ExecutionMode, IpamRecords, VersionedValue};
pub use tortie_model::ipam::owner::{AddressHolder, BlockOwner};
pub use tortie_model::ipam::{TunnelType, block, owner, reservation, space};
