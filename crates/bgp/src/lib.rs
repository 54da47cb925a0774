#![doc = include_str!("../README.md")]

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

pub use config::{AdvertisedNextHop, ConfigError, PeerConfig, SpeakerConfig};
pub use family::{BgpFamily, PerFamily};
pub use net::sockets::SocketFactory;
pub use prefix_set::PrefixSet;
pub use rib::attrs::RouteAttrs;
pub use speaker::{RouteChangeBatch, RouteChangeStream, Speaker, SpeakerError};
