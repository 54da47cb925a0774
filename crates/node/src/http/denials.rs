//! Metrics of denied packets per rule. The kernel counts the packets. The counters are read on request and cached for
//! some seconds, because reading the counters of a large table takes a while.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use std::cmp::Reverse;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use tortie_dataplane::{CountedVerdict, CounterSubject, Netns, RuleCounter, read_counters};
use tortie_http::render_registry;

/// Maximum number of rules with their own series. The remaining rules are summed up in one.
const MAX_DENIAL_SERIES: usize = 200;
const DENIALS_CACHE_TTL: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub struct DenialMetrics(Mutex<Option<(Instant, String)>>);

impl DenialMetrics {
    /// Renders the metrics. Returns an empty text while no policy is enforced, or if the kernel takes longer than
    /// `timeout`.
    pub async fn render(&self, timeout: Duration) -> String {
        let mut cache = self.0.lock().await;
        if let Some((read, text)) = &*cache
            && read.elapsed() < DENIALS_CACHE_TTL
        {
            return text.clone();
        }
        let read = async { read_counters(&Netns::current()?).await };
        let text = match tokio::time::timeout(timeout, read).await {
            Ok(Ok(counters)) => render_counters(&counters),
            _ => String::new(),
        };
        *cache = Some((Instant::now(), text.clone()));
        text
    }
}

pub fn render_counters(counters: &[RuleCounter]) -> String {
    let mut denials: Vec<&RuleCounter> =
        counters.iter().filter(|counter| counter.verdict == CountedVerdict::Deny).collect();
    denials.sort_by_key(|counter| Reverse(counter.packets));
    let packets: Family<[(&'static str, String); 3], Counter> = Family::default();
    for (index, counter) in denials.into_iter().enumerate() {
        let direction = counter.of.direction().to_string();
        let (policy, rule) = match &counter.of {
            _ if index >= MAX_DENIAL_SERIES => ("others".to_owned(), "others".to_owned()),
            CounterSubject::Rule(id) => (id.owner.to_string(), id.index.to_string()),
            CounterSubject::TierEnd { tier, .. } => (format!("tier/{tier}"), "end".to_owned()),
            CounterSubject::NoProfile { .. } => ("profiles".to_owned(), "end".to_owned()),
        };
        let labels = [("policy", policy), ("direction", direction), ("rule", rule)];
        packets.get_or_create(&labels).inc_by(counter.packets);
    }
    let help = "Packets that a rule, the end of a tier or the lack of a profile has denied since it was last written";
    let mut registry = Registry::default();
    registry.register("tortie_denied_packets", help, packets);
    render_registry(&registry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tortie_dataplane::CountedStage;
    use tortie_plan::{PolicyDirection, PolicyId, PolicyKind, RuleId, RuleIndex, RuleOwner};

    fn counter(number: usize, verdict: CountedVerdict, packets: u64) -> RuleCounter {
        let kind = PolicyKind::GlobalNetworkPolicy;
        let owner =
            RuleOwner::Policy(PolicyId { kind, namespace: String::new(), name: format!("p{number}") });
        let of = CounterSubject::Rule(RuleId {
            owner,
            direction: PolicyDirection::Ingress,
            index: RuleIndex::at(0),
        });
        RuleCounter { of, when: CountedStage::Normal, verdict, packets, bytes: 0 }
    }

    #[test]
    fn only_denials_up_to_the_limit_are_reported() {
        let mut all: Vec<RuleCounter> =
            (0..MAX_DENIAL_SERIES + 50).map(|number| counter(number, CountedVerdict::Deny, 1)).collect();
        all.push(counter(9999, CountedVerdict::Allow, 1_000_000));
        let end = CounterSubject::TierEnd { tier: "default".into(), direction: PolicyDirection::Egress };
        all.push(RuleCounter { of: end, ..counter(0, CountedVerdict::Deny, 7) });
        let text = render_counters(&all);
        let line = "tortie_denied_packets_total{policy=\"tier/default\",direction=\"egress\",rule=\"end\"} 7";
        assert!(text.lines().any(|found| found == line), "{text}");
        let others =
            "tortie_denied_packets_total{policy=\"others\",direction=\"ingress\",rule=\"others\"} 51";
        assert!(text.lines().any(|found| found == others), "{text}");
        assert_eq!(text.lines().filter(|line| !line.starts_with('#')).count(), MAX_DENIAL_SERIES + 1);
        assert!(!text.contains("p9999"));
    }
}
