//! Tracks the heap memory that this process has allocated.

use cap::Cap;
use std::alloc::System;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// Returns the allocated megabytes.
pub fn live() -> f64 {
    ALLOCATOR.allocated() as f64 / 1e6
}
