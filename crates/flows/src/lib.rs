#![doc = include_str!("../README.md")]

mod client;
mod collector;
mod metrics;
pub mod proto;
mod resend;
pub mod ring;
mod server;
mod whisker;

pub use client::{CollectorTarget, ConnectError};
pub use collector::{FlowCollector, ListError, now_seconds};
pub use metrics::CollectorMetrics;
pub use resend::{NodeConnection, ResendFilter};
pub use server::{
    CollectorOptions, CollectorServer, DEFAULT_MAX_STREAMS, FlowListenAddress, ServeError, run_collector,
};
pub use whisker::{
    FlowItem, FlowsParameters, ParameterError, PolicyItem, WhiskerOptions, WhiskerServer, parse_filters,
    run_whisker_backend,
};
