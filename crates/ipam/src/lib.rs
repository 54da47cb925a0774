//! IP address management (IPAM), with records that Calico nodes sharing the same pools understand.
//!
//! The core is pure: [`block`], [`pool`], [`pick`], [`reservation`] and [`audit`] are functions of the store's content
//! and of a given time. Changes are described as operations whose steps are safe one by one; a store with transactions
//! executes them atomically.

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
    Allocator, AssignError, Assigned, Assignments, ConfigChange, InUse, ReleaseReport, Request,
    SpecificRequest, TunnelPools,
};
pub use error::{Error, Result};
pub use records::{Carrier, Records, Versioned};
pub use tortie_model::ipam::owner::{Holder, Owner};
pub use tortie_model::ipam::{Tunnel, block, owner, reservation, space};
