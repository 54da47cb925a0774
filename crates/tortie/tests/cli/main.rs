//! The real binary on real stores.

// Helpers of tests may fail a test as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod explaining;
mod full_disk;
mod lab;
mod moving;
mod round_trip;
mod terminal;
mod transcripts;
mod watching;
