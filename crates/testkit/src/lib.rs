#![doc = include_str!("../README.md")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failure here is a failed test")]

mod certificates;
pub mod conformance;
mod envoy;
mod etcd;
mod half_sent;
mod installation;
mod kubernetes;
mod netns;
mod port;
mod process;
pub mod samples;
mod table_owner;
pub mod vm;
mod wait;

pub use certificates::{CertificateFiles, CertificateMaker};
pub use envoy::{Envoy, envoy_program};
pub use etcd::{Etcd, EtcdOptions, EtcdTls};
pub use half_sent::StalledRequestBody;
pub use installation::{DatastoreProcess, PluginCall, TestInstallation, install_plugins};
pub use kubernetes::{
    ApiClient, ApiRequest, ApiResponse, ApiServer, ApiServerBackend, ApiServerOptions, CalicoGroup,
    UNPRIVILEGED_USERS,
};
pub use netns::{CommandArguments, TestNamespace, namespace_command, run};
pub use port::{bind_when_free, free_port};
pub use process::{TestProcess, feed, output, resident};
pub use table_owner::TableOwner;
pub use wait::{CONDITION_TIMEOUT, eventually, eventually_async, eventually_showing};
