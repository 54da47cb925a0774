//! The answers etcd gives when it refuses a request: clients match on these codes and texts.

use tonic::{Code, Status};

/// A request that was understood and not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    pub code: Code,
    pub text: &'static str,
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Status {
        Status::new(refusal.code, refusal.text)
    }
}

macro_rules! refusals {
    ($($name:ident = $code:ident, $text:literal;)*) => {
        impl Refusal {
            $(pub const $name: Refusal = Refusal { code: Code::$code, text: $text };)*
        }
    };
}

refusals! {
    EMPTY_KEY = InvalidArgument, "etcdserver: key is not provided";
    KEY_NOT_FOUND = InvalidArgument, "etcdserver: key not found";
    VALUE_PROVIDED = InvalidArgument, "etcdserver: value is provided";
    LEASE_PROVIDED = InvalidArgument, "etcdserver: lease is provided";
    TOO_MANY_OPS = InvalidArgument, "etcdserver: too many operations in txn request";
    DUPLICATE_KEY = InvalidArgument, "etcdserver: duplicate key given in txn request";
    TOO_LARGE = InvalidArgument, "etcdserver: request is too large";
    COMPACTED = OutOfRange, "etcdserver: mvcc: required revision has been compacted";
    FUTURE_REVISION = OutOfRange, "etcdserver: mvcc: required revision is a future revision";
    NO_SPACE = ResourceExhausted, "etcdserver: mvcc: database space exceeded";
    LEASE_NOT_FOUND = NotFound, "etcdserver: requested lease not found";
    LEASE_EXISTS = FailedPrecondition, "etcdserver: lease already exists";
    LEASE_TTL_TOO_LARGE = OutOfRange, "etcdserver: too large lease TTL";
    AUTH_NOT_ENABLED = FailedPrecondition, "etcdserver: authentication is not enabled";
    STOPPED = Unavailable, "etcdserver: server stopped";
    STORAGE_FAILED = Internal, "etcdserver: storage failed, see the server's log";
}
