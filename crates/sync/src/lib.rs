#![doc = include_str!("../README.md")]

mod outage;
pub mod record;
mod store;

pub use store::{FeedMessage, follow, follow_unprobed, follow_with_progress, report_life};

use tokio::sync::mpsc;
use tortie_model::FeedEvent;

/// The receiving end of a feed. The channel is bounded: a source that is ahead of the consumer waits.
pub type Feed = mpsc::Receiver<FeedEvent>;
