//! Who leads: one of several, by a Lease that it renews.
//!
//! As others do it, nobody trusts another's clock: a lease has run out when it has not changed for its duration as seen from
//! here. A leader that cannot renew its lease stops before anybody else can think that it has run out.

use jiff::Timestamp;
use std::time::Duration;
use tortie_http::liveness::Heartbeat;
use tortie_store::orchestrator::{Lease, Orchestrator, is_too_late};

/// How long a lease holds unless it is renewed.
const HOLDS: Duration = Duration::from_secs(15);
/// A leader that could not renew its lease for so long is none any more.
const GIVES_UP: Duration = Duration::from_secs(10);
/// Between looks.
const LOOKS: Duration = Duration::from_secs(2);

/// What one candidate knows, without any I/O.
#[derive(Debug)]
pub struct Candidate {
    identity: String,
    /// The lease as it was last seen to change, and when that was.
    observed: Option<(Lease, Duration)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// To be written; who succeeds leads.
    Write(Lease),
    /// Somebody else leads.
    Wait,
}

impl Candidate {
    pub fn new(identity: &str) -> Candidate {
        Candidate { identity: identity.to_owned(), observed: None }
    }

    /// What to do about a lease as it stands. `now` only grows; `clock` is what others are told.
    pub fn look(&mut self, found: Option<Lease>, now: Duration, clock: Timestamp) -> Step {
        let time = written(clock);
        let mine = |lease: &Lease| Lease {
            holder: self.identity.clone(),
            seconds: u32::try_from(HOLDS.as_secs()).unwrap_or(u32::MAX),
            renewed: time.clone(),
            ..lease.clone()
        };
        let Some(lease) = found else {
            return Step::Write(Lease { acquired: time.clone(), ..mine(&Lease::default()) });
        };
        if lease.holder == self.identity {
            return Step::Write(mine(&lease));
        }
        let since = match &self.observed {
            Some((seen, since)) if *seen == lease => *since,
            _ => {
                self.observed = Some((lease.clone(), now));
                now
            }
        };
        let holds = Duration::from_secs(u64::from(lease.seconds)).max(Duration::from_secs(1));
        match lease.holder.is_empty() || now.saturating_sub(since) >= holds {
            true => {
                let transitions = lease.transitions.saturating_add(1);
                Step::Write(Lease { acquired: time.clone(), transitions, ..mine(&lease) })
            }
            false => Step::Wait,
        }
    }
}

fn written(clock: Timestamp) -> String {
    format!("{clock:.6}")
}

/// A place for leaders.
#[derive(Clone, Debug)]
pub struct Election {
    pub orchestrator: Orchestrator,
    pub namespace: String,
    pub name: String,
    pub identity: String,
}

impl Election {
    /// Waits until this one leads.
    pub async fn won(&self, heartbeat: &Heartbeat) {
        let started = tokio::time::Instant::now();
        let (mut candidate, mut troubled) = (Candidate::new(&self.identity), false);
        loop {
            heartbeat.beat();
            match self.attempt(&mut candidate, started.elapsed()).await {
                Ok(true) => return,
                Ok(false) => troubled = false,
                Err(error) => {
                    if !std::mem::replace(&mut troubled, true) {
                        tracing::warn!(%error, lease = self.name, "the lease cannot be read or written; trying again");
                    }
                }
            }
            tokio::time::sleep(jittered()).await;
        }
    }

    /// Renews the lease; returns when that has failed for too long, or somebody else has it.
    pub async fn lost(&self, heartbeat: &Heartbeat) {
        let started = tokio::time::Instant::now();
        let mut renewed = started;
        loop {
            heartbeat.beat();
            tokio::time::sleep(LOOKS).await;
            let mut candidate = Candidate::new(&self.identity);
            let attempt = self.attempt(&mut candidate, started.elapsed());
            match tokio::time::timeout_at(renewed + GIVES_UP, attempt).await {
                Ok(Ok(true)) => renewed = tokio::time::Instant::now(),
                Ok(Ok(false)) => return,
                Ok(Err(error)) => tracing::debug!(%error, "the lease could not be renewed"),
                Err(_) => return,
            }
            if renewed.elapsed() >= GIVES_UP {
                return;
            }
        }
    }

    /// Gives the lease up, so that nobody has to wait for it to run out.
    pub async fn resign(&self) {
        if let Ok(Some(lease)) = self.orchestrator.lease(&self.namespace, &self.name).await
            && lease.holder == self.identity
        {
            let free = Lease { holder: String::new(), ..lease };
            if let Err(error) = self.orchestrator.write_lease(&self.namespace, &self.name, &free).await {
                tracing::debug!(%error, "the lease is left to run out");
            }
        }
    }

    /// Whether this one leads now.
    async fn attempt(&self, candidate: &mut Candidate, now: Duration) -> tortie_store::Result<bool> {
        let found = self.orchestrator.lease(&self.namespace, &self.name).await?;
        match candidate.look(found, now, Timestamp::now()) {
            Step::Wait => Ok(false),
            Step::Write(lease) => {
                match self.orchestrator.write_lease(&self.namespace, &self.name, &lease).await {
                    Ok(_) => Ok(true),
                    Err(error) if is_too_late(&error) => Ok(false),
                    Err(error) => Err(error),
                }
            }
        }
    }
}

/// Candidates that start together do not stay together.
fn jittered() -> Duration {
    LOOKS.mul_f64(rand::random_range(0.5..1.5))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_lease_that_does_not_change_runs_out_and_no_other() {
        let mut candidate = Candidate::new("b");
        let clock = Timestamp::UNIX_EPOCH;
        let Step::Write(first) = Candidate::new("a").look(None, at(0), clock) else { panic!() };
        assert_eq!(
            (first.holder.as_str(), first.seconds, first.renewed.as_str()),
            ("a", 15, "1970-01-01T00:00:00.000000Z")
        );
        let seen = Lease { version: "1".into(), ..first };
        assert_eq!(candidate.look(Some(seen.clone()), at(100), clock), Step::Wait);
        assert_eq!(candidate.look(Some(seen.clone()), at(114), clock), Step::Wait);
        let renewed = Lease { version: "2".into(), ..seen.clone() };
        assert_eq!(candidate.look(Some(renewed.clone()), at(115), clock), Step::Wait);
        assert_eq!(candidate.look(Some(renewed.clone()), at(129), clock), Step::Wait);
        let Step::Write(taken) = candidate.look(Some(renewed), at(130), clock) else { panic!() };
        assert_eq!((taken.holder.as_str(), taken.transitions, taken.version.as_str()), ("b", 1, "2"));
        let free = Lease { holder: String::new(), ..seen };
        assert!(
            matches!(candidate.look(Some(free), at(131), clock), Step::Write(_)),
            "one that was given up"
        );
    }

    proptest! {
        /// Whatever the delays, two never hold the lease at once: a leader that cannot renew stops before another may take it.
        #[test]
        fn there_is_one_leader_at_most(steps in proptest::collection::vec((0..3_usize, 1..4_u64, any::<bool>()), 1..300)) {
            let mut stored: Option<Lease> = None;
            let mut version = 0_u32;
            let names = ["a", "b", "c"];
            let mut candidates = names.map(Candidate::new);
            // Until when each believes that it leads.
            let mut leads = [at(0); 3];
            let mut now = at(1000);
            for (who, pause, works) in steps {
                now += at(pause);
                // Its requests get lost.
                if !works {
                    continue;
                }
                if let Step::Write(lease) = candidates[who].look(stored.clone(), now, Timestamp::UNIX_EPOCH) {
                    version += 1;
                    stored = Some(Lease { version: version.to_string(), ..lease });
                    leads[who] = now + GIVES_UP;
                }
                prop_assert!(leads.iter().filter(|until| **until > now).count() <= 1, "{leads:?} at {now:?}");
            }
        }
    }
}
