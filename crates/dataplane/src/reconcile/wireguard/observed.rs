//! WireGuard devices in the kernel. The kernel sends no notifications about their configuration: they are read after
//! each of our changes, and periodically.

use super::super::DataplaneCore;
use crate::kernel::{PrivateKey, WireguardState};
use std::collections::BTreeMap;
use tortie_plan::TunnelKind;

#[derive(Debug, Default)]
pub(crate) struct WireguardDevice {
    /// The desired private key; `None` until it is determined.
    pub key: Option<PrivateKey>,
    /// `None` until the device has been read.
    pub state: Option<WireguardState>,
    /// Whether threaded NAPI is enabled.
    pub threaded: bool,
    /// The reason why the device is not as desired.
    pub error: Option<String>,
}

impl WireguardDevice {
    /// Clears the known state of a device that is gone or may have been replaced; its key is kept.
    pub fn forget(&mut self) {
        (self.state, self.threaded) = (None, false);
    }
}

impl DataplaneCore {
    pub(in crate::reconcile) fn wireguards_unread(&mut self) {
        self.wireguards.values_mut().for_each(|device| device.state = None);
    }

    pub fn wireguard(&mut self, kind: TunnelKind) -> &mut WireguardDevice {
        self.wireguards.entry(kind).or_default()
    }

    /// Returns the public key of each device as text, for other nodes. Devices that do not exist are omitted. `None`
    /// before the first plan, as the desired devices are not known.
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
