//! Generated messages and services of kubelet's protocols.
#![allow(clippy::all, missing_docs)]

pub mod csi {
    tonic::include_proto!("csi.v1");
}

pub mod pluginregistration {
    tonic::include_proto!("pluginregistration");
}
