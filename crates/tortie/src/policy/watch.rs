//! `tortie policy watch`: prints verdicts as they happen, with the rule that decided.
//!
//! The kernel counts matches of every rule, so a changed counter is a verdict. Packets of rules with action Log are
//! received one by one, with their addresses.

use clap::{Args, ValueEnum};
use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tortie_ctl::CommandError;
use tortie_dataplane::{
    CountedStage, CountedVerdict, CounterSubject, LoggedPacket, Netns, RuleCounter, follow_log_group,
    read_counters,
};

/// Logged packets that wait to be printed. The kernel drops further packets.
const MAX_QUEUED_PACKETS: usize = 1024;

/// Show denied and allowed packets as they happen, with the rule that decides
///
/// Prints a line for each rule whose counter has changed since the last poll, and a line with addresses for each packet
/// that a rule with action Log matches. Packets of established flows are not evaluated again and not shown. Watches the
/// kernel of the current network namespace; the node's daemon need not be running.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  tortie policy watch                              everything, until interrupted
  tortie policy watch --only deny                  denied packets
  tortie policy watch --policy np/shop/            policies of namespace shop
  tortie lab exec node1 -- tortie policy watch     a node of the lab")]
pub struct PolicyWatchArgs {
    /// Show only these verdicts; may be given several times
    #[arg(long, value_name = "VERDICT", value_enum)]
    only: Vec<ShownVerdict>,
    /// Show only rules whose name contains this: np/shop/web, gnp/, tier/default, profile/
    #[arg(long, value_name = "TEXT")]
    policy: Option<String>,
    /// Interval between reads of the counters, in milliseconds
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(50..))]
    interval: u64,
    /// Print at most this many lines per second; the rest is counted
    #[arg(long, value_name = "LINES", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
    /// Stop after this many lines
    #[arg(long, value_name = "LINES")]
    count: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ShownVerdict {
    Allow,
    Deny,
    Pass,
    Log,
    Staged,
}

impl ShownVerdict {
    fn verdict(self) -> CountedVerdict {
        match self {
            ShownVerdict::Allow => CountedVerdict::Allow,
            ShownVerdict::Deny => CountedVerdict::Deny,
            ShownVerdict::Pass => CountedVerdict::Pass,
            ShownVerdict::Log => CountedVerdict::Log,
            ShownVerdict::Staged => CountedVerdict::Staged,
        }
    }
}

/// A line to print.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PolicyWatchEvent {
    verdict: CountedVerdict,
    rule: String,
    what: String,
}

impl PolicyWatchArgs {
    fn wants(&self, event: &PolicyWatchEvent) -> bool {
        let by_verdict = self.only.is_empty() || self.only.iter().any(|only| only.verdict() == event.verdict);
        by_verdict && self.policy.as_ref().is_none_or(|text| event.rule.contains(text))
    }
}

pub async fn watch(args: &PolicyWatchArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let netns = Netns::current().map_err(CommandError::message)?;
    let mut seen = LastCounts::default();
    seen.changes(&read_counters(&netns).await.map_err(super::kernel_error)?);
    let (sender, mut logged) = mpsc::channel(MAX_QUEUED_PACKETS);
    let follower = follow_log_group(&netns, sender);
    tokio::pin!(follower);
    let mut following = true;
    let mut look = tokio::time::interval(Duration::from_millis(args.interval));
    look.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut pace = LineRateLimit::new(args.rate);
    let mut left = args.count;
    loop {
        let events: Vec<PolicyWatchEvent> = tokio::select! {
            ended = &mut follower, if following => {
                following = false;
                if let Err(error) = ended {
                    writeln!(std::io::stderr(), "cannot show logged packets individually: {error}")?;
                }
                continue;
            }
            Some(packet) = logged.recv() => vec![describe_packet_event(packet)],
            _ = look.tick() => seen.changes(&read_counters(&netns).await.map_err(super::kernel_error)?),
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        for event in events.into_iter().filter(|event| args.wants(event)) {
            let Some(missed) = pace.admits(now) else { continue };
            if missed > 0 {
                writeln!(out, "{}  {missed} lines omitted (--rate {})", format_clock(now), args.rate)?;
            }
            writeln!(out, "{}  {:<6}  {}  {}", format_clock(now), event.verdict, event.rule, event.what)?;
            left = left.map(|left| left.saturating_sub(1));
            if left == Some(0) {
                return Ok(out.flush()?);
            }
        }
        out.flush()?;
    }
}

/// Formats the time of day in UTC.
fn format_clock(now: Duration) -> String {
    let seconds = now.as_secs() % (24 * 60 * 60);
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

fn describe_packet_event(packet: LoggedPacket) -> PolicyWatchEvent {
    let what = packet.flow.map_or("unreadable packet".to_owned(), |flow| flow.to_string());
    PolicyWatchEvent { verdict: CountedVerdict::Log, rule: packet.rule, what }
}

/// Counter values of the previous poll.
#[derive(Debug, Default)]
struct LastCounts(BTreeMap<(CounterSubject, CountedStage), (u64, u64)>);

impl LastCounts {
    /// Returns the changes since the previous poll. The counter of a rewritten rule restarts from zero.
    fn changes(&mut self, counters: &[RuleCounter]) -> Vec<PolicyWatchEvent> {
        let mut current = BTreeMap::new();
        let mut events = Vec::new();
        for counter in counters {
            let key = (counter.of.clone(), counter.when);
            let (old_packets, old_bytes) = self.0.get(&key).copied().unwrap_or_default();
            let RuleCounter { mut packets, mut bytes, .. } = *counter;
            if packets >= old_packets && bytes >= old_bytes {
                packets -= old_packets;
                bytes -= old_bytes;
            }
            if packets > 0 {
                let unit = if packets == 1 { "packet" } else { "packets" };
                let what = format!("{packets} {unit}, {bytes} bytes");
                events.push(PolicyWatchEvent {
                    verdict: counter.verdict,
                    rule: counter.of.to_string(),
                    what,
                });
            }
            current.insert(key, (counter.packets, counter.bytes));
        }
        self.0 = current;
        events
    }
}

/// Rate limit for printed lines.
#[derive(Debug)]
struct LineRateLimit {
    rate: u32,
    second: u64,
    printed: u32,
    missed: u64,
}

impl LineRateLimit {
    fn new(rate: u32) -> LineRateLimit {
        LineRateLimit { rate, second: 0, printed: 0, missed: 0 }
    }

    /// Returns the number of lines omitted since the last one if another line may be printed; `None` otherwise.
    fn admits(&mut self, now: Duration) -> Option<u64> {
        if now.as_secs() != self.second {
            self.second = now.as_secs();
            self.printed = 0;
        }
        if self.printed >= self.rate {
            self.missed = self.missed.saturating_add(1);
            return None;
        }
        self.printed += 1;
        Some(std::mem::take(&mut self.missed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tortie_plan::{PolicyDirection, PolicyId, PolicyKind, RuleId, RuleIndex, RuleOwner};

    fn counter(name: &str, verdict: CountedVerdict, packets: u64) -> RuleCounter {
        let id =
            PolicyId { kind: PolicyKind::GlobalNetworkPolicy, namespace: String::new(), name: name.into() };
        let owner = RuleOwner::Policy(id);
        let of = CounterSubject::Rule(RuleId {
            owner,
            direction: PolicyDirection::Ingress,
            index: RuleIndex::at(0),
        });
        RuleCounter { of, when: CountedStage::Normal, verdict, packets, bytes: packets * 60 }
    }

    #[test]
    fn only_what_changed_is_told() {
        let mut seen = LastCounts::default();
        seen.changes(&[counter("web", CountedVerdict::Deny, 5)]);
        assert_eq!(seen.changes(&[counter("web", CountedVerdict::Deny, 5)]), []);
        let events =
            seen.changes(&[counter("web", CountedVerdict::Deny, 7), counter("db", CountedVerdict::Allow, 1)]);
        let reported: Vec<String> =
            events.iter().map(|event| format!("{} {} {}", event.verdict, event.rule, event.what)).collect();
        assert_eq!(
            reported,
            [
                "deny gnp/web ingress rule 1 2 packets, 120 bytes",
                "allow gnp/db ingress rule 1 1 packet, 60 bytes"
            ]
        );
        // The rule was rewritten: its counter restarts from zero.
        let events = seen.changes(&[counter("web", CountedVerdict::Deny, 3)]);
        assert_eq!(events[0].what, "3 packets, 180 bytes");
    }

    #[test]
    fn a_flood_is_counted_and_not_printed() {
        let mut pace = LineRateLimit::new(2);
        let second = Duration::from_secs;
        assert_eq!([0, 0, 0, 0].map(|_| pace.admits(second(7))), [Some(0), Some(0), None, None]);
        assert_eq!(pace.admits(second(8)), Some(2));
        assert_eq!(pace.admits(second(8)), Some(0));
    }

    #[test]
    fn filters_are_by_verdict_and_name() {
        let event = |verdict| PolicyWatchEvent {
            verdict,
            rule: "np/shop/web ingress rule 1".into(),
            what: String::new(),
        };
        let mut watch = PolicyWatchArgs {
            only: vec![ShownVerdict::Deny],
            policy: None,
            interval: 1000,
            rate: 1,
            count: None,
        };
        assert!(watch.wants(&event(CountedVerdict::Deny)) && !watch.wants(&event(CountedVerdict::Allow)));
        watch.policy = Some("np/shop/".into());
        assert!(watch.wants(&event(CountedVerdict::Deny)));
        watch.policy = Some("gnp/".into());
        assert!(!watch.wants(&event(CountedVerdict::Deny)));
        assert_eq!(format_clock(second_of_day(3, 4, 5)), "03:04:05");
    }

    fn second_of_day(hours: u64, minutes: u64, seconds: u64) -> Duration {
        Duration::from_secs(86_400 * 20_000 + hours * 3600 + minutes * 60 + seconds)
    }
}
