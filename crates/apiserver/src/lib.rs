//! The projectcalico.org/v3 API server. It runs behind kube-apiserver, which forwards requests for the group to it,
//! so that `kubectl` manages Calico's resources in any datastore.
//!
//! Modules without I/O: `request` parses requests, `selectors` selects objects, `write`, `patch` and `deletion`
//! compute the new state of objects, `table`, `discovery` and `openapi` render documents for clients, `tiers` defines
//! the permissions on tiers, `refusal` the error responses, `history` holds the objects of a kind and their latest
//! changes. Modules with I/O: `storage` and `cache` over the store, `access` with `trust` and `reviews`, `watching`,
//! `verbs`, `workers` for CPU-bound work, and `handler` and `server` for HTTP. `webhook` is for clusters where the
//! objects are custom resources of the group, so that kube-apiserver serves them itself.

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
