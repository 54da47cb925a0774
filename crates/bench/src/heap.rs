//! Tracks the heap memory that this process has allocated.

use cap::Cap;
use std::alloc::System;

#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

/// Returns the allocated megabytes.
pub fn live() -> f64 {
    HEAP.allocated() as f64 / 1e6
}
