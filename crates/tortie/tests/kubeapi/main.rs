//! Tests of the node daemon on the Kubernetes API with a real kube-apiserver, real network namespaces and real
//! packets. Pods are only objects; the test takes the place of kubelet.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

/// Runs each test once per API group that may hold Calico's objects.
macro_rules! in_both_groups {
    ($($name:ident),* $(,)?) => {
        mod v1 {
            $(#[test] fn $name() { super::$name(tortie_testkit::CalicoGroup::V1); })*
        }
        mod v3 {
            $(#[test] fn $name() { super::$name(tortie_testkit::CalicoGroup::V3); })*
        }
    };
}

mod absence;
mod access;
mod churn;
mod cluster_policies;
mod clusters;
mod condition;
mod controllers;
mod etcd_textbook;
mod etcd_tls;
mod fail_closed;
mod floating;
mod flood;
mod hub;
mod manifests;
mod mirror;
mod moving;
mod operator;
mod outage;
mod pods;
mod prefixes;
mod services;
mod token;
mod upkeep;
mod world;
