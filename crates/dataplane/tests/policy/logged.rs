//! Packets of a Log rule can be received from the NFLOG group, in any network namespace.

use crate::namespace::{OpenNetns, TestNamespace};
use crate::plans::{guarded, ingress, open_plan, reaches, two_pods};
use futures::{Stream, StreamExt};
use nlink::Connection;
use nlink::netlink::Nflog;
use nlink::netlink::namespace::Netns;
use nlink::netlink::nflog::NflogPacket;
use std::time::Duration;
use tortie_dataplane::{CountedVerdict, DataplaneHandle, follow_log_group, read_counters};
use tortie_plan::{DataplaneSettings, LogLimit, PlannedRule, RuleAction};

const NFLOG_GROUP: u16 = 3;
const NFPROTO_IPV4: u8 = 2;
const NFPROTO_IPV6: u8 = 10;

async fn listen(node: &TestNamespace) -> Connection<Nflog> {
    let log = Connection::<Nflog>::new_in(&Netns::from_path(node.path()).unwrap()).unwrap();
    log.bind_group(NFLOG_GROUP, 0xffff).await.unwrap();
    log
}

async fn next(packets: &mut (impl Stream<Item = nlink::Result<NflogPacket>> + Unpin)) -> NflogPacket {
    let packet = tokio::time::timeout(Duration::from_secs(30), packets.next()).await;
    packet.expect("a packet is logged").unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn logged_packets_carry_the_rule_identity() {
    let (node, one, _two) = two_pods().await;
    let mut settings = DataplaneSettings::default();
    settings.policy.log_prefix = "packet %t %k %n %p".into();
    let (dataplane, _reports) = DataplaneHandle::start(node.open(), settings).await.unwrap();
    let rules = |protocol| PlannedRule { protocol: Some(protocol), ..PlannedRule::new(RuleAction::Log) };
    let policy = ingress(vec![rules(1), rules(58), rules(6), PlannedRule::new(RuleAction::Allow)]);
    dataplane.replace(guarded(open_plan(), &[("watch", policy)])).await.unwrap();

    let log = listen(&node).await;
    let mut packets = log.events().await;
    // The kernel log line has the configured prefix.
    let listing = node.exec(&["nft", "list", "chain", "inet", "tortie", "in-gnp/watch"]);
    assert!(listing.contains("log prefix \"packet default gnp watch watch: \""), "{listing}");
    let out = node.json("link show dev cali2")[0]["ifindex"].as_u64();
    for (address, family, length, rule) in
        [("10.65.0.3", NFPROTO_IPV4, 84, 1), ("fd80:65::3", NFPROTO_IPV6, 104, 2)]
    {
        // The packet is logged, then judged by the next rule.
        assert!(reaches(&one, address));
        let packet = next(&mut packets).await;
        assert_eq!(packet.prefix, Some(format!("gnp/watch ingress rule {rule}")));
        assert_eq!((packet.family, packet.group, packet.payload.len()), (family, NFLOG_GROUP, length));
        assert_eq!(packet.outdev.map(u64::from), out);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn packets_beyond_the_log_limit_still_pass() {
    let (node, one, _two) = two_pods().await;
    let mut settings = DataplaneSettings::default();
    settings.policy.log_limit = Some(LogLimit { packets: 1, seconds: 60 * 60, burst: 2 });
    let (dataplane, _reports) = DataplaneHandle::start(node.open(), settings).await.unwrap();
    let log = |protocol| PlannedRule { protocol: Some(protocol), ..PlannedRule::new(RuleAction::Log) };
    let policy = ingress(vec![log(1), log(58), PlannedRule::new(RuleAction::Allow)]);
    dataplane.replace(guarded(open_plan(), &[("watch", policy)])).await.unwrap();
    let listener = listen(&node).await;
    let mut packets = listener.events().await;
    for _ in 0..5 {
        assert!(reaches(&one, "10.65.0.3"));
    }
    // The IPv6 rule has its own limit and has not logged yet; its packet comes after all others.
    assert!(reaches(&one, "fd80:65::3"));
    let families = [next(&mut packets).await, next(&mut packets).await, next(&mut packets).await];
    assert_eq!(families.map(|packet| packet.family), [NFPROTO_IPV4, NFPROTO_IPV4, NFPROTO_IPV6]);
    let counters = read_counters(&node.open()).await.unwrap();
    let first = counters.iter().find(|counter| counter.of.to_string() == "gnp/watch ingress rule 1");
    assert_eq!(first.map(|counter| counter.packets), Some(5), "all of them are counted");
    assert_eq!(first.map(|counter| counter.verdict), Some(CountedVerdict::Log));
}

#[tokio::test(flavor = "multi_thread")]
async fn log_group_followers_receive_rule_and_flow() {
    let (node, one, _two) = two_pods().await;
    let (dataplane, _reports) =
        DataplaneHandle::start(node.open(), DataplaneSettings::default()).await.unwrap();
    let policy = ingress(vec![PlannedRule::new(RuleAction::Log), PlannedRule::new(RuleAction::Allow)]);
    dataplane.replace(guarded(open_plan(), &[("watch", policy)])).await.unwrap();
    let (sender, mut packets) = tokio::sync::mpsc::channel(16);
    let netns = node.open();
    let follower = tokio::spawn(async move { follow_log_group(&netns, sender).await });
    // The listener may start slightly after this test sends its first packet.
    let packet = loop {
        assert!(reaches(&one, "10.65.0.3"));
        if let Ok(packet) = packets.try_recv() {
            break packet;
        }
        assert!(!follower.is_finished(), "{:?}", follower.await);
    };
    assert_eq!(packet.rule, "gnp/watch ingress rule 1");
    assert_eq!(packet.flow.unwrap().to_string(), "icmp 10.65.0.2 -> 10.65.0.3");
    follower.abort();
}
