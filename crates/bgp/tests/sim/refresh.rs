//! Route refresh with peers that support only the original form, or the enhanced one.

use crate::net::*;
use rustbgpd_wire::{Afi, Message, RouteRefreshMessage, RouteRefreshSubtype, Safi, encode_message};

fn refresh(subtype: RouteRefreshSubtype) -> Vec<u8> {
    let message = RouteRefreshMessage::new_with_subtype(Afi::Ipv4, Safi::Unicast, subtype);
    encode_message(&Message::RouteRefresh(message)).unwrap().to_vec()
}

#[test]
fn a_refresh_tells_everything_again_between_two_markers() {
    let mut network = SimulatedNetwork::mesh(2, 64512);
    for last in 0..100 {
        network.originate(0, &format!("192.0.2.{last}/32"));
    }
    network.run(20);
    let (in_before, out_before) =
        (network.status(1, "peer1").messages_in, network.status(1, "peer1").updates_in);
    let end = network.end_of(0, 1);
    network.inject(end, &refresh(RouteRefreshSubtype::Normal));
    // BoRR, one UPDATE with all prefixes, EoRR.
    assert_eq!(network.status(1, "peer1").messages_in - in_before, 3);
    assert_eq!(network.status(1, "peer1").updates_in - out_before, 1);
    assert_eq!(network.status(1, "peer1").prefixes_in.v4, 100);
    assert!(network.all_up());
}

#[test]
fn what_is_not_repeated_between_the_markers_goes() {
    let mut network = SimulatedNetwork::mesh(2, 64512);
    network.originate(0, "192.0.2.0/24");
    network.originate(0, "198.51.100.0/24");
    network.run(20);
    let end = network.end_of(1, 0);
    network.inject(end, &refresh(RouteRefreshSubtype::BoRR));
    assert_eq!(network.status(1, "peer1").prefixes_in.v4, 2, "doubted, not dropped");
    network.originate_with(
        0,
        "192.0.2.0/24",
        tortie_bgp::RouteAttrs { med: Some(1), ..tortie_bgp::RouteAttrs::local() },
    );
    network.settle();
    network.inject(end, &refresh(RouteRefreshSubtype::EoRR));
    assert!(network.routes_to(1, "192.0.2.0/24").is_some());
    assert_eq!(network.routes_to(1, "198.51.100.0/24"), None);
    assert_eq!(network.status(1, "peer1").prefixes_in.v4, 1);
}
