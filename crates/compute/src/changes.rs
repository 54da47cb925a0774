//! What one part of the computation changes in the plan.

use tortie_plan::Update;

/// Each list in an order in which it can be carried out by itself. How the lists of different parts go together is
/// decided where they meet: what is referred to comes first and goes last.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// What comes, or replaces what was there.
    pub added: Vec<Update>,
    pub removed: Vec<Update>,
}

impl Changes {
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty()
    }
}
