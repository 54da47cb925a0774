//! What a rule with Log says can be read by whoever listens to the group, in any network namespace.

use crate::plans::{guarded, ingress, open_plan, reaches, two_pods};
use futures::StreamExt;
use nlink::Connection;
use nlink::netlink::Nflog;
use nlink::netlink::namespace::Netns;
use std::time::Duration;
use tortie_dataplane::Dataplane;
use tortie_plan::{Action, Rule, Settings};

const GROUP: u16 = 3;
const IPV4: u8 = 2;
const IPV6: u8 = 10;

#[tokio::test(flavor = "multi_thread")]
async fn a_logged_packet_is_told_with_the_prefix_of_its_rule() {
    let (node, one, _two) = two_pods().await;
    let mut settings = Settings::default();
    settings.policy.log_prefix = "packet %t %k %n %p".into();
    let (dataplane, _reports) = Dataplane::start(node.open(), settings).await.unwrap();
    let rules = |protocol| Rule { protocol: Some(protocol), ..Rule::new(Action::Log) };
    let policy = ingress(vec![rules(1), rules(58), rules(6), Rule::new(Action::Allow)]);
    dataplane.replace(guarded(open_plan(), &[("watch", policy)])).await.unwrap();

    let log = Connection::<Nflog>::new_in(&Netns::from_path(node.path()).unwrap()).unwrap();
    log.bind_group(GROUP, 0xffff).await.unwrap();
    let mut packets = log.events().await;
    let out = node.json("link show dev cali2")[0]["ifindex"].as_u64();
    for (address, family, length) in [("10.65.0.3", IPV4, 84), ("fd80:65::3", IPV6, 104)] {
        // Logged, and then judged by the rule that follows.
        assert!(reaches(&one, address));
        let packet = tokio::time::timeout(Duration::from_secs(30), packets.next()).await;
        let packet = packet.expect("a packet is told of").unwrap().unwrap();
        assert_eq!(packet.prefix.as_deref(), Some("packet default gnp watch watch: "));
        assert_eq!((packet.family, packet.group, packet.payload.len()), (family, GROUP, length));
        assert_eq!(packet.outdev.map(u64::from), out);
    }
}
