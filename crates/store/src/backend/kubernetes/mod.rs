//! The Kubernetes API as a store: Calico's own objects as custom resources, the rest derived from Kubernetes' objects.
//!
//! `group` is the API group in use; `object` and `records` turn resources and IPAM's records into custom resources and
//! back; `pod`, `profile` and `node` derive what is not stored. All of these are functions without I/O.

mod collection;
mod core;
mod group;
mod names;
mod node;
mod object;
mod pod;
mod profile;
mod quantity;
mod records;
mod uid;
