#![doc = include_str!("../README.md")]

mod access;
mod body;
mod cache;
mod deletion;
mod discovery;
mod handler;
mod history;
mod listen;
mod media;
mod metrics;
mod openapi;
mod patch;
mod refusal;
mod request;
mod resources;
mod reviews;
mod run;
mod selectors;
mod server;
mod storage;
mod stored;
mod table;
mod tiers;
mod trust;
mod verbs;
mod watching;
mod webhook;
mod workers;
mod write;

pub use listen::ListenArgs;
pub use run::{ApiServerArgs, ApiServerRunError, run, run_webhooks, serve};
pub use tortie_tls::CertificateLifetimes;
pub use webhook::{WebhooksArgs, serve_webhooks};
