//! WireGuard devices as the kernel has them. The kernel does not tell when one changes: they are read after every change
//! of ours, and from time to time.

use super::super::Core;
use crate::kernel::{PrivateKey, WireguardState};
use std::collections::BTreeMap;
use tortie_plan::TunnelKind;

#[derive(Debug, Default)]
pub(crate) struct WireguardDevice {
    /// The key that it must have; none until there is one.
    pub key: Option<PrivateKey>,
    /// None until it has been read.
    pub state: Option<WireguardState>,
    /// It receives in a thread of its own.
    pub threaded: bool,
    /// Why it is not as it must be.
    pub error: Option<String>,
}

impl WireguardDevice {
    /// It is gone, or may be another one; its key is the same.
    pub fn forget(&mut self) {
        (self.state, self.threaded) = (None, false);
    }
}

impl Core {
    pub(in crate::reconcile) fn wireguards_unread(&mut self) {
        self.wireguards.values_mut().for_each(|device| device.state = None);
    }

    pub fn wireguard(&mut self, kind: TunnelKind) -> &mut WireguardDevice {
        self.wireguards.entry(kind).or_default()
    }

    /// What other nodes have to know: the public key of each device, as text; nothing where there is none. None as long
    /// as it is not known which devices there must be.
    pub fn public_keys(&self) -> Option<BTreeMap<TunnelKind, String>> {
        let key = |kind: TunnelKind| {
            let device = self.wireguards.get(&kind)?;
            let state = device.state.as_ref().filter(|state| state.private_key == device.key)?;
            self.wireguard_device(kind)?;
            Some((kind, state.public_key?.to_string()))
        };
        let kinds = TunnelKind::ALL.into_iter().filter(|kind| kind.is_wireguard());
        self.in_sync.then(|| kinds.filter_map(key).collect())
    }
}
