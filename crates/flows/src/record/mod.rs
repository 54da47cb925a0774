//! Makes flow records of the events of the kernel: events in, flows out. Reads no clock and does no I/O: the caller passes the
//! time, the policy in force and the objects that addresses belong to.

mod book;
mod decision;
mod ends;
mod hits;
mod recorder;
mod records;
mod table;
mod view;

pub use book::AddressBook;
pub use recorder::{FlowRecorder, RecorderLimits, RecorderStats};
pub use view::PolicyView;
