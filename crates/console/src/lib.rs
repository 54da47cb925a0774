#![doc = include_str!("../README.md")]

mod access;
mod assets;
mod changes;
mod error;
mod events;
mod listen;
pub mod map;
mod metrics;
mod server;
mod snapshot;
mod views;

pub use listen::{ConsoleListen, ListenError};
pub use server::{ConsoleOptions, ServeError, run_console};
