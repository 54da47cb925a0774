//! How much of the heap is in use, as the allocator is asked for it.

use cap::Cap;
use std::alloc::System;

#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

/// Megabytes in use by this process.
pub fn live() -> f64 {
    HEAP.allocated() as f64 / 1e6
}
