//! The node daemon on the Kubernetes API: a real API server, real namespaces, real packets. Pods are objects; there is no
//! kubelet but the test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

/// Tests of an API group in which Calico's objects may be, for each of them.
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
mod condition;
mod controllers;
mod fail_closed;
mod floating;
mod flood;
mod hub;
mod mirror;
mod moving;
mod outage;
mod pods;
mod services;
mod token;
mod upkeep;
mod world;
