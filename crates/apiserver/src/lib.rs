//! The projectcalico.org/v3 API server. It stands behind Kubernetes' own, which passes on whatever is asked of the group, so that
//! `kubectl` manages Calico's resources wherever they are stored.
//!
//! Without I/O: `request` reads what is asked for, `selectors` which objects are meant, `write`, `patch` and `deletion` what becomes of them,
//! `table`, `discovery` and `openapi` what clients are shown, `tiers` what is asked about tiers, `refusal` what is said when something is
//! wrong, `history` the objects of a kind and their last changes. With it: `storage` and `cache` over the store, `access` with
//! `trust` and `reviews`, `watching`, `verbs`, `workers` for what takes a processor, and `handler` and `server` for HTTP. `webhook` is for clusters where objects are custom
//! resources of that group, so that Kubernetes serves them itself.

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
pub use run::{ApiServerArgs, RunError, run, run_webhooks, serve};
pub use tortie_tls::Lifetimes;
pub use webhook::{WebhooksArgs, serve_webhooks};
