//! Generated messages and services of Envoy's external authorization and of the health probes.
#![allow(clippy::all, missing_docs)]

pub mod envoy {
    pub mod service {
        pub mod auth {
            pub mod v3 {
                tonic::include_proto!("envoy.service.auth.v3");
            }
            pub mod v2 {
                tonic::include_proto!("envoy.service.auth.v2");
            }
            pub mod v2alpha {
                tonic::include_proto!("envoy.service.auth.v2alpha");
            }
        }
    }
}

pub mod dikastes {
    tonic::include_proto!("dikastes");
}

pub use envoy::service::auth::{v2, v2alpha, v3};
