//! Leader election: of several replicas, the one that holds a Lease and renews it leads.
//!
//! As in other implementations, no replica trusts the clock of another: a lease has expired when a replica has observed
//! no change of it for the duration of the lease, by its own clock. A leader that cannot renew its lease steps down
//! before any other replica can consider it expired.

use jiff::Timestamp;
use std::time::Duration;
use tortie_http::liveness::ComponentHeartbeat;
use tortie_store::orchestrator::{LeaderLease, OrchestratorClient, is_too_late};

/// Duration of a lease without renewal.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// Time without a successful renewal after which a leader steps down.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Interval between reads of the lease.
const LEASE_RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// State of one candidate. Does no I/O.
#[derive(Debug)]
pub struct LeaseCandidate {
    identity: String,
    /// The lease as first read after its last change, and the time of that read.
    observed: Option<(LeaderLease, Duration)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ElectionStep {
    /// Write this lease; the replica whose write succeeds leads.
    Write(LeaderLease),
    /// Another replica leads.
    Wait,
}

impl LeaseCandidate {
    pub fn new(identity: &str) -> LeaseCandidate {
        LeaseCandidate { identity: identity.to_owned(), observed: None }
    }

    /// Returns the next step, given the lease as read from kube-apiserver. `now` is monotonic; `clock` is the
    /// wall-clock time written to the lease.
    pub fn next_step(&mut self, found: Option<LeaderLease>, now: Duration, clock: Timestamp) -> ElectionStep {
        let time = format!("{clock:.6}");
        let own = LeaderLease {
            holder: self.identity.clone(),
            seconds: u32::try_from(LEASE_DURATION.as_secs()).unwrap_or(u32::MAX),
            renewed: time.clone(),
            acquired: time,
            ..found.clone().unwrap_or_default()
        };
        let Some(lease) = found else { return ElectionStep::Write(own) };
        if lease.holder == self.identity {
            return ElectionStep::Write(LeaderLease { acquired: lease.acquired, ..own });
        }
        let since = match &self.observed {
            Some((seen, since)) if *seen == lease => *since,
            _ => {
                self.observed = Some((lease.clone(), now));
                now
            }
        };
        let duration = Duration::from_secs(u64::from(lease.seconds)).max(Duration::from_secs(1));
        if !lease.holder.is_empty() && now.saturating_sub(since) < duration {
            return ElectionStep::Wait;
        }
        let transitions = lease.transitions.saturating_add(1);
        ElectionStep::Write(LeaderLease { transitions, ..own })
    }
}

/// A replica's participation in the election for one Lease.
#[derive(Clone, Debug)]
pub struct LeaderElection {
    pub orchestrator: OrchestratorClient,
    pub namespace: String,
    pub name: String,
    pub identity: String,
}

impl LeaderElection {
    /// Waits until this replica leads.
    pub async fn wait_until_leading(&self, heartbeat: &ComponentHeartbeat) {
        let started = tokio::time::Instant::now();
        let mut candidate = LeaseCandidate::new(&self.identity);
        let mut error_logged = false;
        loop {
            heartbeat.beat();
            match self.attempt(&mut candidate, started.elapsed()).await {
                Ok(true) => return,
                Ok(false) => error_logged = false,
                Err(error) if !error_logged => {
                    tracing::warn!(%error, lease = self.name, "cannot read or write the lease; retrying");
                    error_logged = true;
                }
                Err(_) => {}
            }
            tokio::time::sleep(draw_interval()).await;
        }
    }

    /// Renews the lease. Returns when renewals have failed for [`RENEW_DEADLINE`] or another replica holds the lease.
    pub async fn renew_until_lost(&self, heartbeat: &ComponentHeartbeat) {
        let started = tokio::time::Instant::now();
        let mut renewed = started;
        loop {
            heartbeat.beat();
            tokio::time::sleep(LEASE_RETRY_INTERVAL).await;
            let mut candidate = LeaseCandidate::new(&self.identity);
            let attempt = self.attempt(&mut candidate, started.elapsed());
            match tokio::time::timeout_at(renewed + RENEW_DEADLINE, attempt).await {
                Ok(Ok(true)) => renewed = tokio::time::Instant::now(),
                Ok(Ok(false)) => return,
                Ok(Err(error)) => tracing::debug!(%error, "cannot renew the lease"),
                Err(_) => return,
            }
            if renewed.elapsed() >= RENEW_DEADLINE {
                return;
            }
        }
    }

    /// Releases the lease, so that no replica has to wait for it to expire.
    pub async fn resign(&self) {
        if let Ok(Some(lease)) = self.orchestrator.lease(&self.namespace, &self.name).await
            && lease.holder == self.identity
        {
            let released = LeaderLease { holder: String::new(), ..lease };
            if let Err(error) = self.orchestrator.write_lease(&self.namespace, &self.name, &released).await {
                tracing::debug!(%error, "cannot release the lease; it will expire");
            }
        }
    }

    /// Tries to acquire or renew the lease and returns whether this replica leads.
    async fn attempt(
        &self,
        candidate: &mut LeaseCandidate,
        now: Duration,
    ) -> tortie_store::StoreResult<bool> {
        let found = self.orchestrator.lease(&self.namespace, &self.name).await?;
        match candidate.next_step(found, now, Timestamp::now()) {
            ElectionStep::Wait => Ok(false),
            ElectionStep::Write(lease) => {
                match self.orchestrator.write_lease(&self.namespace, &self.name, &lease).await {
                    Ok(_) => Ok(true),
                    Err(error) if is_too_late(&error) => Ok(false),
                    Err(error) => Err(error),
                }
            }
        }
    }
}

/// Returns the interval with jitter, so that candidates that start together do not stay synchronised.
fn draw_interval() -> Duration {
    LEASE_RETRY_INTERVAL.mul_f64(rand::random_range(0.5..1.5))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn only_an_unchanged_lease_expires() {
        let mut candidate = LeaseCandidate::new("b");
        let clock = Timestamp::UNIX_EPOCH;
        let ElectionStep::Write(first) = LeaseCandidate::new("a").next_step(None, at(0), clock) else {
            panic!()
        };
        assert_eq!(
            (first.holder.as_str(), first.seconds, first.renewed.as_str()),
            ("a", 15, "1970-01-01T00:00:00.000000Z")
        );
        let seen = LeaderLease { version: "1".into(), ..first };
        assert_eq!(candidate.next_step(Some(seen.clone()), at(100), clock), ElectionStep::Wait);
        assert_eq!(candidate.next_step(Some(seen.clone()), at(114), clock), ElectionStep::Wait);
        let renewed = LeaderLease { version: "2".into(), ..seen.clone() };
        assert_eq!(candidate.next_step(Some(renewed.clone()), at(115), clock), ElectionStep::Wait);
        assert_eq!(candidate.next_step(Some(renewed.clone()), at(129), clock), ElectionStep::Wait);
        let ElectionStep::Write(taken) = candidate.next_step(Some(renewed), at(130), clock) else { panic!() };
        assert_eq!((taken.holder.as_str(), taken.transitions, taken.version.as_str()), ("b", 1, "2"));
        let released = LeaderLease { holder: String::new(), ..seen };
        assert!(
            matches!(candidate.next_step(Some(released), at(131), clock), ElectionStep::Write(_)),
            "a released lease"
        );
    }

    proptest! {
        /// For any delays, at most one replica leads: a leader that cannot renew the lease steps down before another
        /// replica may acquire it.
        #[test]
        fn at_most_one_replica_leads(steps in proptest::collection::vec((0..3_usize, 1..4_u64, any::<bool>()), 1..300)) {
            let mut stored: Option<LeaderLease> = None;
            let mut version = 0_u32;
            let names = ["a", "b", "c"];
            let mut candidates = names.map(LeaseCandidate::new);
            // Time until which each replica considers itself the leader.
            let mut leads_until = [at(0); 3];
            let mut now = at(1000);
            // Each step is a replica, a delay, and whether the requests of the replica are delivered.
            for (replica, delay, delivered) in steps {
                now += at(delay);
                if !delivered {
                    continue;
                }
                if let ElectionStep::Write(lease) = candidates[replica].next_step(stored.clone(), now, Timestamp::UNIX_EPOCH) {
                    version += 1;
                    stored = Some(LeaderLease { version: version.to_string(), ..lease });
                    leads_until[replica] = now + RENEW_DEADLINE;
                }
                prop_assert!(leads_until.iter().filter(|until| **until > now).count() <= 1, "{leads_until:?} at {now:?}");
            }
        }
    }
}
