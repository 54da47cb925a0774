#![doc = include_str!("../README.md")]

mod client;
mod collector;
mod metrics;
pub mod proto;
mod push;
pub mod record;
mod resend;
pub mod ring;
mod server;
mod whisker;

pub use client::{CollectorTarget, ConnectError, connect_node};
pub use collector::{FlowCollector, ListError, now_seconds};
pub use metrics::CollectorMetrics;
pub use push::{FlowPusher, PushState};
pub use resend::{NodeConnection, ResendFilter};
pub use server::{
    CollectorOptions, CollectorServer, DEFAULT_MAX_STREAMS, FlowListenAddress, ServeError, run_collector,
    serve_local_flows,
};
pub use whisker::{
    FlowItem, FlowsParameters, ParameterError, PolicyItem, WhiskerOptions, WhiskerServer, parse_filters,
    run_whisker_backend,
};
