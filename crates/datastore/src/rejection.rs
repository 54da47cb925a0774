//! The errors with which etcd rejects requests. Clients match on these codes and texts.

use tonic::codegen::http::{HeaderMap, HeaderValue};
use tonic::{Code, Status};

/// A valid request that was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct RequestRejection {
    pub code: Code,
    pub text: &'static str,
}

impl From<RequestRejection> for Status {
    fn from(refusal: RequestRejection) -> Status {
        Status::new(refusal.code, refusal.text)
    }
}

/// Returns the trailers of a successful response.
pub fn success() -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
    trailers
}

macro_rules! refusals {
    ($($name:ident = $code:ident, $text:literal;)*) => {
        impl RequestRejection {
            $(pub const $name: RequestRejection = RequestRejection { code: Code::$code, text: $text };)*
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
    AUTH_FAILED = InvalidArgument, "etcdserver: authentication failed, invalid user ID or password";
    INVALID_TOKEN = Unauthenticated, "etcdserver: invalid auth token";
    PERMISSION_DENIED = PermissionDenied, "etcdserver: permission denied";
    ROOT_USER_MISSING = FailedPrecondition, "etcdserver: root user does not exist";
    ROOT_ROLE_MISSING = FailedPrecondition, "etcdserver: root user does not have root role";
    USER_EXISTS = FailedPrecondition, "etcdserver: user name already exists";
    USER_EMPTY = InvalidArgument, "etcdserver: user name is empty";
    USER_NOT_FOUND = FailedPrecondition, "etcdserver: user name not found";
    ROLE_EXISTS = FailedPrecondition, "etcdserver: role name already exists";
    ROLE_NOT_FOUND = FailedPrecondition, "etcdserver: role name not found";
    ROLE_EMPTY = InvalidArgument, "etcdserver: role name is empty";
    ROLE_NOT_GRANTED = FailedPrecondition, "etcdserver: role is not granted to the user";
    PERMISSION_NOT_GRANTED = FailedPrecondition, "etcdserver: permission is not granted to the role";
    PERMISSION_NOT_GIVEN = InvalidArgument, "etcdserver: permission not given";
    INVALID_AUTH_MANAGEMENT = InvalidArgument, "etcdserver: invalid auth management";
    TOO_MANY_REQUESTS = ResourceExhausted, "etcdserver: too many requests";
    ANSWER_TOO_LARGE = ResourceExhausted, "etcdserver: the answer would be too large; read it in pages, with a limit";
    TOO_MUCH_WORK = ResourceExhausted, "etcdserver: the request looks at too many keys; divide it into several";
    TOO_MANY_LEASES = ResourceExhausted, "etcdserver: too many leases";
    TIMED_OUT = Unavailable, "etcdserver: request timed out";
    GIVEN_UP = Unavailable, "etcdserver: too many requests are unfinished, this one was given up to make room";
    STOPPED = Unavailable, "etcdserver: server stopped";
    STORAGE_FAILED = Internal, "etcdserver: storage failed, see the server's log";
}
