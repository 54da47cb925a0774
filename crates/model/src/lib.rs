#![doc = include_str!("../README.md")]

#[macro_use]
mod api_types;

pub mod codec;
pub mod columns;
pub mod dhcp;
pub mod feed;
pub mod ipam;
pub mod key;
pub mod kind;
pub mod kinds;
pub mod kubernetes;
pub mod meta;
pub mod names;
pub mod object;
pub mod resource;
pub mod revision;
pub mod salvage;
pub mod scalar;
pub mod schema;
pub mod selector;
pub mod status;
pub mod validation;
pub mod value;

pub use feed::FeedEvent;
pub use key::{KeyRange, StoreKey};
pub use kind::{Kind, Scope};
pub use meta::ObjectMeta;
pub use object::{DecodeError, NoStatus, ResourceSpec, StatusForm, TypedObject};
pub use resource::{Resource, ResourceList};
pub use revision::Revision;
pub use validation::{FieldChecker, FieldError, ValidationError};
pub use value::StoreValue;

/// The API group and version of every kind.
pub const API_VERSION: &str = "projectcalico.org/v3";
