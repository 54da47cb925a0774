//! Builds the OPEN message and the configuration of the state machine.

use crate::config::{PeerConfig, SpeakerConfig};
use crate::family::BgpFamily;
use rustbgpd_fsm::PeerConfig as FsmConfig;
use rustbgpd_wire::{Capability, OpenMessage};

pub(super) fn fsm_config(config: &SpeakerConfig, peer: &PeerConfig) -> FsmConfig {
    let mut fsm = FsmConfig::new(config.local_as(peer), peer.remote_as, config.router_id);
    fsm.hold_time = peer.hold_time;
    fsm.connect_retry_secs = peer.connect_retry.as_secs().clamp(1, 3600) as u32;
    fsm.families = peer.families.iter().map(|family| family.wire()).collect();
    fsm.graceful_restart = peer.restart_time.is_some();
    fsm.gr_restart_time = peer.restart_time.unwrap_or_default();
    fsm.add_path_receive = peer.add_path;
    fsm.add_path_send = peer.add_path;
    // Otherwise a peer that supports only IPv4 would negotiate IPv4 although it is not configured.
    fsm.disable_ipv4_unicast = !peer.families.contains(&BgpFamily::V4);
    fsm
}

/// Completes the OPEN of the state machine, which does not know about our restart and offers two features that we do
/// not implement: keeping routes after a NOTIFICATION (RFC 8538) and IPv6 next hops for IPv4 (RFC 8950).
pub(super) fn complete(open: &mut OpenMessage, restarting: bool, preserved: bool) {
    open.capabilities.retain(|capability| !matches!(capability, Capability::ExtendedNextHop(_)));
    for capability in &mut open.capabilities {
        if let Capability::GracefulRestart { restart_state, notification, families, .. } = capability {
            *restart_state = restarting;
            *notification = false;
            for family in families {
                family.forwarding_preserved = preserved;
            }
        }
    }
}
