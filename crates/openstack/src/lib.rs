#![doc = include_str!("../README.md")]

mod api;
mod command_queue;
mod election;
mod error;
mod metrics;
mod names;
pub mod neutron;
mod resync;
mod run;
mod slot;
mod status;
mod stored_form;
pub mod translate;
mod writer;

pub use error::OpenStackError;
pub use names::{OpenStackRegion, sanitize_label};
pub use resync::{PhaseReport, ResyncReport, ResyncScope};
pub use run::{DEFAULT_SOCKET, OpenStackOptions, run};
pub use slot::{SlotContent, SlotKey};
pub use writer::{SlotOutcome, SlotWriter};
