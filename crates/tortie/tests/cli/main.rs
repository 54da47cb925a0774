//! Tests of the real binary on real datastores.

// Test helpers may panic like tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod address_churn;
mod explaining;
mod full_disk;
mod image;
mod lab;
mod moving;
mod round_trip;
mod terminal;
mod transcripts;
mod watching;
