//! Address management: who has which address, in a form that Calico nodes sharing the same pools understand.
//!
//! The core is pure: [`block`], [`pool`], [`pick`], [`reservation`] and [`audit`] are functions of what the store
//! holds and of the time they are told.

pub mod allocator;
pub mod audit;
pub mod block;
pub mod error;
pub mod facts;
mod follow;
mod handle;
pub mod ledger;
pub mod owner;
pub mod pick;
pub mod pool;
pub mod reservation;
pub mod space;
pub mod usage;

pub use allocator::{
    Allocator, AssignError, Assigned, Assignments, ConfigChange, ReleaseReport, Request, SpecificRequest,
    Tunnel, TunnelPools,
};
pub use error::{Error, Result};
pub use ledger::Ledger;
pub use owner::{Holder, Owner};
