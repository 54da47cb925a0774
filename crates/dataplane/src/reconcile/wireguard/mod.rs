//! The configuration that only WireGuard devices have: keys, peers and their allowed IPs. Additions are made before
//! routes lead to a peer, and removals after the routes are gone.

mod apply;
mod desired;
#[cfg(test)]
mod tests;

use super::{LinkChange, OperationResult, ReconcileContext, ReconcileOperations, ReconcileStep, Reconciler};
use crate::failure::{AffectedWorkloads, FailureReason, KernelFailure, KernelObject};
use crate::kernel::{KernelSnapshot, PrivateKey, WireguardChange, WireguardPeerState, WireguardState};
use desired::{desired_state, is_threading_desired};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use tortie_plan::TunnelKind;

const WIREGUARD_KINDS: [TunnelKind; 2] = [TunnelKind::WireguardV4, TunnelKind::WireguardV6];

#[derive(Debug, Default)]
pub struct WireguardReconciler {
    devices: BTreeMap<TunnelKind, WireguardDevice>,
}

#[derive(Debug, Default)]
struct WireguardDevice {
    /// The desired private key; `None` until it is determined.
    key: Option<PrivateKey>,
    /// Whether the file of the key has to be read again.
    is_key_stale: bool,
    /// `None` until the device has been read. The kernel sends no notifications about the configuration: it is read
    /// after each of our changes, and periodically.
    state: Option<WireguardState>,
    /// Whether threaded NAPI is enabled.
    threaded: bool,
    /// Whether the device was changed in this run.
    is_changed: bool,
    /// The reason why the device is not as desired.
    error: Option<FailureReason>,
}

/// An operation on the device of a tunnel, given by name.
#[derive(Clone, Debug)]
pub struct WireguardOperation {
    pub tunnel: TunnelKind,
    pub device: String,
    pub action: WireguardAction,
}

#[derive(Clone, Debug)]
pub enum WireguardAction {
    Read,
    /// Determines the private key from the file, from the key in use, and from the key that the device has.
    LoadKey {
        known: Option<PrivateKey>,
        on_device: Option<PrivateKey>,
    },
    Change(WireguardChange),
    SetThreaded {
        index: Option<u32>,
        threaded: bool,
    },
}

impl WireguardDevice {
    /// Clears the known state of a device that is gone or may have been replaced; its key is kept.
    fn forget(&mut self) {
        self.state = None;
        self.threaded = false;
    }

    /// Returns the next action before the routes are written.
    fn next_action(&mut self, tunnel: TunnelKind, context: &ReconcileContext) -> Option<WireguardAction> {
        if self.error.is_some() {
            return None;
        }
        let Some(state) = &self.state else { return Some(WireguardAction::Read) };
        if self.key.is_none() || self.is_key_stale {
            self.is_key_stale = false;
            let on_device = state.private_key.clone();
            return Some(WireguardAction::LoadKey { known: self.key.clone(), on_device });
        }
        if !self.is_changed
            && let Some(change) = self.missing(tunnel, context)
        {
            self.is_changed = true;
            self.state = None;
            return Some(WireguardAction::Change(change));
        }
        let threaded = is_threading_desired(tunnel, context);
        let index = context.tunnel_link(tunnel).map(|link| link.index);
        (self.threaded != threaded).then_some(WireguardAction::SetThreaded { index, threaded })
    }

    /// Returns the missing configuration. `None` if nothing is missing, or if the device has not been read.
    fn missing(&self, tunnel: TunnelKind, context: &ReconcileContext) -> Option<WireguardChange> {
        let observed = self.state.as_ref()?;
        let desired = desired_state(tunnel, self.key.clone(), context)?;
        let mut change = WireguardChange {
            private_key: desired.private_key.filter(|key| observed.private_key.as_ref() != Some(key)),
            port: Some(desired.port).filter(|port| *port != observed.port),
            mark: Some(desired.mark).filter(|mark| *mark != observed.mark),
            ..WireguardChange::default()
        };
        for (key, peer) in desired.peers {
            let Some(known) = observed.peers.get(&key) else {
                change.new.insert(key);
                change.set.insert(key, peer);
                continue;
            };
            let allowed: BTreeSet<IpNet> = peer.allowed.difference(&known.allowed).copied().collect();
            let is_same = known.endpoint == peer.endpoint && known.keepalive == peer.keepalive;
            if !is_same || !allowed.is_empty() {
                change.set.insert(key, WireguardPeerState { allowed, ..peer });
            }
        }
        (change != WireguardChange::default()).then_some(change)
    }

    /// Returns the peers that no longer exist, and the allowed IPs that peers no longer have.
    fn surplus(&self, tunnel: TunnelKind, context: &ReconcileContext) -> Option<WireguardChange> {
        let observed = self.state.as_ref().filter(|_| context.in_sync)?;
        let desired = desired_state(tunnel, self.key.clone(), context)?;
        let mut change = WireguardChange::default();
        for (key, known) in &observed.peers {
            match desired.peers.get(key) {
                None => {
                    change.removed.insert(*key);
                }
                Some(peer) if !known.allowed.is_subset(&peer.allowed) => {
                    change.narrowed.insert(*key, peer.allowed.clone());
                }
                Some(_) => {}
            }
        }
        (change != WireguardChange::default()).then_some(change)
    }
}

impl WireguardReconciler {
    fn device(&mut self, tunnel: TunnelKind) -> &mut WireguardDevice {
        self.devices.entry(tunnel).or_default()
    }

    pub fn observe(&mut self, tunnel: TunnelKind, state: WireguardState) {
        self.device(tunnel).state = Some(state);
    }

    pub fn set_key(&mut self, tunnel: TunnelKind, key: PrivateKey) {
        self.device(tunnel).key = Some(key);
    }

    /// Returns the public key of each device as text, for other nodes. Devices that do not exist are omitted. `None`
    /// before the first plan, as the desired devices are not known.
    pub fn public_keys(&self, context: &ReconcileContext) -> Option<BTreeMap<TunnelKind, String>> {
        if !context.in_sync {
            return None;
        }
        let mut keys = BTreeMap::new();
        for (tunnel, device) in &self.devices {
            if let Some(state) = device.state.as_ref().filter(|state| state.private_key == device.key)
                && let Some(key) = &state.public_key
                && device_in_plan(*tunnel, context).is_some()
            {
                keys.insert(*tunnel, key.to_string());
            }
        }
        Some(keys)
    }
}

/// Returns the device name of a tunnel in the plan if the device exists.
fn device_in_plan(tunnel: TunnelKind, context: &ReconcileContext) -> Option<String> {
    context.plan.tunnel(tunnel)?;
    context.tunnel_link(tunnel).map(|link| link.name.clone())
}

impl Reconciler for WireguardReconciler {
    fn resync(&mut self, _: &mut KernelSnapshot, _: &ReconcileContext) {
        self.devices.values_mut().for_each(|device| device.state = None);
    }

    fn link_changed(&mut self, change: &LinkChange<'_>, context: &ReconcileContext) {
        if change.keeps_name_and_state() {
            return;
        }
        for tunnel in change.states().filter_map(|link| context.tunnel_called(&link.name)) {
            if tunnel.is_wireguard() {
                self.device(tunnel).forget();
            }
        }
    }

    fn tick(&mut self, _: &ReconcileContext) {
        self.devices.values_mut().for_each(|device| device.is_key_stale = true);
    }

    fn failures(&self, context: &ReconcileContext) -> Vec<KernelFailure> {
        let devices = self.devices.iter().filter(|(tunnel, _)| context.plan.tunnel(**tunnel).is_some());
        let failures = devices.filter_map(|(tunnel, device)| {
            Some(KernelFailure {
                object: KernelObject::interface(context.device_name(*tunnel)),
                concerns: AffectedWorkloads::none(),
                reason: device.error.clone()?,
            })
        });
        failures.collect()
    }
}

impl ReconcileOperations for WireguardReconciler {
    type Operation = WireguardOperation;

    /// A device is read, gets its key, is changed and gets its threading mode.
    const MAX_ROUNDS: usize = 4;

    fn begin(&mut self, step: ReconcileStep) {
        if step == ReconcileStep::Write {
            for device in self.devices.values_mut() {
                device.is_changed = false;
                device.error = None;
            }
        }
    }

    fn operations(&mut self, step: ReconcileStep, context: &ReconcileContext) -> Vec<WireguardOperation> {
        let mut operations = Vec::new();
        for tunnel in WIREGUARD_KINDS {
            let device = self.device(tunnel);
            let Some(name) = device_in_plan(tunnel, context) else {
                device.forget();
                continue;
            };
            let action = match step {
                ReconcileStep::Write => device.next_action(tunnel, context),
                ReconcileStep::Remove => {
                    let change = device.surplus(tunnel, context);
                    if change.is_some() {
                        device.state = None;
                    }
                    change.map(WireguardAction::Change)
                }
            };
            operations.extend(action.map(|action| WireguardOperation { tunnel, device: name, action }));
        }
        operations
    }

    fn record(&mut self, operation: WireguardOperation, result: OperationResult, _: &ReconcileContext) {
        let WireguardOperation { tunnel, device: name, action } = operation;
        let device = self.device(tunnel);
        match (action, result) {
            (WireguardAction::SetThreaded { threaded, .. }, Ok(())) => device.threaded = threaded,
            (_, Ok(())) => {}
            (WireguardAction::Change(change), Err(error)) if change.is_removal() => {
                tracing::warn!(device = name, reason = %error, "cannot remove WireGuard peers of removed nodes; will retry");
            }
            (_, Err(error)) => device.error = Some(error.reason()),
        }
    }
}
