//! The connections through which operations are performed, and the errors of operations.

use super::KernelObservation;
use crate::error::{DataplaneError, DataplaneResult};
use crate::failure::{FailureReason, KernelObject};
use crate::kernel::{ConntrackCleanup, KernelRejection, RejectionKind, RtnetlinkClient, WireguardClient};
use crate::netns::Netns;
use crate::wireguard_keys::{WireguardFileError, WireguardKeys};

pub struct KernelHandle {
    pub netns: Netns,
    pub rtnetlink: RtnetlinkClient,
    pub conntrack: ConntrackCleanup,
    pub wireguard_keys: WireguardKeys,
    /// Opened when the first WireGuard device exists.
    wireguard: Option<WireguardClient>,
}

impl KernelHandle {
    pub fn new(netns: Netns, rtnetlink: RtnetlinkClient, wireguard_keys: WireguardKeys) -> KernelHandle {
        let conntrack = ConntrackCleanup::default();
        KernelHandle { netns, rtnetlink, conntrack, wireguard_keys, wireguard: None }
    }

    /// Reads an interface after an operation on it. Returns `None` if the kernel does not answer: the operation has its
    /// own result, and the next event or tick reads the interface again.
    pub async fn read_link(&self, index: u32) -> Option<KernelObservation> {
        let link = self.rtnetlink.link(index).await.ok()?;
        Some(KernelObservation::Link { index, link })
    }

    pub async fn wireguard(&mut self) -> DataplaneResult<&WireguardClient> {
        match &mut self.wireguard {
            Some(client) => Ok(client),
            closed => Ok(closed.insert(WireguardClient::open(&self.netns).await?)),
        }
    }
}

pub type OperationResult = Result<(), OperationError>;

/// The reason why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum OperationError {
    #[error("{0}")]
    Rejected(#[from] KernelRejection),
    #[error("{0}")]
    Dataplane(#[from] DataplaneError),
    #[error("{0}")]
    WireguardFile(#[from] WireguardFileError),
}

impl OperationError {
    /// Returns whether the kernel rejected the operation because the object already exists.
    pub fn is_exists(&self) -> bool {
        matches!(self, OperationError::Rejected(rejection) if rejection.kind == RejectionKind::Exists)
    }

    pub fn reason(&self) -> FailureReason {
        FailureReason::from_error(self)
    }

    /// Returns the object that failed, which is `object` unless the error names another, and the reason.
    pub fn into_parts(self, object: KernelObject) -> (KernelObject, FailureReason) {
        match self {
            OperationError::Dataplane(error) => error.into(),
            other => (object, other.reason()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_errno_is_part_of_the_reason() {
        const EEXIST: i32 = 17;
        let rejection = KernelRejection::from(nlink::Error::from_errno(-EEXIST));
        let text = rejection.to_string();
        let reason = OperationError::from(rejection).reason();
        assert_eq!((reason.errno(), reason.to_string()), (Some(EEXIST), text));
    }
}
