#![doc = include_str!("../README.md")]

mod decode;
mod encode;
mod error;
mod names;

/// Messages and services, generated from `proto/policysync.proto`.
#[allow(clippy::all, missing_docs)]
pub mod proto {
    tonic::include_proto!("felix");
}

pub use decode::{
    DecodedMessage, MAX_RULES_PER_DIRECTION, SyncEvent, decode_message, decode_policy, decode_rule,
};
pub use encode::{
    MAX_MEMBERS_PER_MESSAGE, encode_endpoint, encode_members, encode_namespace, encode_policy,
    encode_profile, encode_rule, encode_service_account, encode_set, encode_set_part, encode_set_removal,
};
pub use error::{DecodeError, DecodeProblem, ProblemObject};
