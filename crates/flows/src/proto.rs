//! Messages and services of Goldmane's protocol, generated from `proto/goldmane.proto`.
#![allow(clippy::all, missing_docs)]

tonic::include_proto!("goldmane");
