//! Where a node's feed comes from. Each source gives the same events ([`FeedEvent`]) through a bounded channel, so
//! whoever consumes them does not know which source it is.

mod outage;
pub mod record;
mod store;

pub use store::{Heard, follow, follow_with_progress, report_life};

use tokio::sync::mpsc;
use tortie_model::FeedEvent;

/// The consumer's end of a feed. A source that is ahead waits.
pub type Feed = mpsc::Receiver<FeedEvent>;
