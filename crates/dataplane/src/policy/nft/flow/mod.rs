//! Flows: the labels and sets in which rules record decisions, and the reader that turns them into events.

mod counts;
mod identity;
mod label;
mod messages;
mod reader;
mod source;

pub use identity::{FlowIdentities, FlowIdentity};
pub use label::{FlowLabel, FlowSlot, LABEL_BYTES};
#[doc(hidden)]
pub use messages::describe as describe_flow_message;
pub use source::NftFlowSource;

/// NFLOG group of first packets. Felix uses the groups 1 and 2, Log rules use group 3.
pub const FLOW_GROUP: u16 = 4;
