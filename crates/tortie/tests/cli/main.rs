//! The real binary on real stores.

mod lab;
mod round_trip;
mod transcripts;
mod watching;
