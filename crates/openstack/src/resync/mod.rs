//! Resync: compares the datastore with Neutron and writes only the differences.
//!
//! The driver leads: for each phase it lets the daemon read the datastore first, then sends Neutron's objects in pages.
//! Entries that no object demands are deleted at the end of the phase, at the revision that was read.

mod felix;
mod report;
mod session;

pub use report::{PhaseReport, ResyncReport, ResyncScope};
pub use session::{MAX_SESSIONS, PhaseKind, PhaseVerification, ResyncSessions};
