//! The source of flow records: reports connections and denied packets with the rule that decided about them.

use futures::future::BoxFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc;
use tortie_plan::flow::{FlowEvent, FlowSourceSettings, PolicyGeneration};

/// Number of the policy in the kernel. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct SharedGeneration(Arc<AtomicU64>);

impl SharedGeneration {
    pub fn get(&self) -> PolicyGeneration {
        PolicyGeneration(self.0.load(Ordering::Acquire))
    }

    pub(crate) fn advance(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// A source of flow events. Each policy engine has one, because only the engine can resolve its identities.
pub trait FlowSource: Send + Sync {
    /// Starts the source, stops it if there are no settings, or restarts it with other settings or after a failure.
    fn converge(&mut self, settings: Option<FlowSourceSettings>) -> BoxFuture<'_, ()>;

    /// Returns the receiver of all events, once. If it is slow, counts are reported later and other events are lost and
    /// counted.
    fn take_events(&mut self) -> Option<mpsc::Receiver<FlowEvent>>;

    fn is_running(&self) -> bool;

    /// Returns the number of the policy that is in the kernel, for all times.
    fn generation(&self) -> SharedGeneration;
}
