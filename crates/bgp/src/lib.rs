//! The BGP speaker: sessions, routing tables, filters, route reflection and graceful restart.
//!
//! [`core::Core`] is the speaker without I/O; [`Speaker`] adds sockets and a clock.

pub mod bird;
mod bitmap;
pub mod config;
pub mod core;
mod family;
mod fib_lag;
pub mod filter;
mod frame;
mod id;
mod net;
mod prefix_set;
pub mod rib;
mod speaker;
mod task;
mod timers;

pub use config::{Config, ConfigError, NextHopMode, PeerConfig};
pub use family::{Family, PerFamily};
pub use net::sockets::Sockets;
pub use prefix_set::PrefixSet;
pub use rib::attrs::Attrs;
pub use speaker::{Batch, Routes, Speaker, SpeakerError};
