//! Election of the daemon that reports states to Neutron: a leased key in the datastore.

use crate::OpenStackRegion;
use rand::Rng;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use tortie_model::{Revision, StoreKey, StoreValue};
use tortie_store::{StoreClient, StoreError, StoreResult};

const LEASE_TTL: Duration = Duration::from_secs(60);
const REFRESH_INTERVAL: Duration = Duration::from_secs(10);
/// Range of the delay before the next attempt, in milliseconds.
const RETRY_DELAY_MS: std::ops::Range<u64> = 1000..2000;

/// Whether this daemon leads.
#[derive(Debug, Default)]
pub struct LeaderFlag(AtomicBool);

impl LeaderFlag {
    pub fn is_leader(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    fn set(&self, leads: bool) {
        if self.0.swap(leads, Ordering::AcqRel) != leads {
            if leads {
                tracing::info!("this daemon reports states to Neutron now");
            } else {
                tracing::warn!(
                    "this daemon does not report states to Neutron any more: it lost the election"
                );
            }
        }
    }
}

/// One candidate.
#[derive(Debug)]
pub struct ElectionCandidate {
    client: StoreClient,
    region: OpenStackRegion,
    name: String,
    /// Revision of the key that this candidate wrote, and the time until which it leads.
    held: Option<(Revision, Instant)>,
}

impl ElectionCandidate {
    /// Creates a candidate. Other candidates on the same host must have the same name.
    pub fn new(client: StoreClient, region: OpenStackRegion, name: String) -> ElectionCandidate {
        ElectionCandidate { client, region, name, held: None }
    }

    /// Takes part in the election until the future is dropped.
    pub async fn run(mut self, flag: &LeaderFlag) {
        loop {
            let outcome = self.attempt(std::process::id()).await;
            if let Err(error) = &outcome {
                tracing::debug!(%error, "election failed");
            }
            let now = Instant::now();
            let leads = self.held.as_ref().is_some_and(|(_, until)| *until > now);
            flag.set(leads);
            let delay = if matches!(outcome, Ok(true)) {
                REFRESH_INTERVAL
            } else {
                Duration::from_millis(rand::rng().random_range(RETRY_DELAY_MS))
            };
            tokio::time::sleep(delay).await;
        }
    }

    /// Acquires or refreshes the key. Returns whether this candidate holds it.
    async fn attempt(&mut self, pid: u32) -> StoreResult<bool> {
        let key = StoreKey::NeutronElection { region: self.region.name().to_owned() };
        let started = Instant::now();
        let value = StoreValue::Raw(format!("{}:{pid}", self.name).into_bytes());
        let seen = self.held.as_ref().map(|(revision, _)| revision.clone());
        match self.client.write_expiring(&key, &value, seen.as_ref(), LEASE_TTL).await {
            Ok(entry) => {
                self.held = Some((entry.revision, started + LEASE_TTL));
                // Daemons of older versions look only at this key.
                self.client.apply(&StoreKey::LegacyNeutronElection, &value, Some(LEASE_TTL)).await?;
                Ok(true)
            }
            Err(error) if error.is_lost_race() => {
                self.held = None;
                self.remove_dead_leader(&key).await?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Removes the key of a leader on this host whose process has ended.
    async fn remove_dead_leader(&self, key: &StoreKey) -> StoreResult<()> {
        let entry = match self.client.get(key).await {
            Ok(entry) => entry,
            Err(StoreError::DoesNotExist { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        let StoreValue::Raw(bytes) = &entry.value else { return Ok(()) };
        let Some(pid) = read_pid(bytes, &self.name) else { return Ok(()) };
        if Path::new("/proc").join(pid.to_string()).exists() {
            return Ok(());
        }
        match self.client.delete(key, Some(&entry.revision)).await {
            Err(error) if !error.is_lost_race() => Err(error),
            _ => Ok(()),
        }
    }
}

/// Returns the process of a leader with this name; `None` for the leader of another host.
fn read_pid(value: &[u8], name: &str) -> Option<u32> {
    let (leader, pid) = std::str::from_utf8(value).ok()?.rsplit_once(':')?;
    if leader == name { pid.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tortie_store::StoreConfig;
    use tortie_testkit::{Etcd, TestProcess};

    #[test]
    fn only_own_leaders_have_a_pid_here() {
        assert_eq!(read_pid(b"ctl-1:17", "ctl-1"), Some(17));
        for value in ["ctl-2:17", "ctl-1", "ctl-1:x", ""] {
            assert_eq!(read_pid(value.as_bytes(), "ctl-1"), None, "{value}");
        }
    }

    async fn candidate(etcd: &Etcd, name: &str) -> ElectionCandidate {
        let config = StoreConfig { etcd_endpoints: etcd.endpoint(), ..StoreConfig::default() };
        let client = StoreClient::connect(&config).await.unwrap();
        ElectionCandidate::new(client, OpenStackRegion::default(), name.to_owned())
    }

    #[tokio::test]
    async fn one_candidate_leads_until_it_ends() {
        let etcd = Etcd::start().unwrap();
        let own = std::process::id();
        let (mut first, mut second) = (candidate(&etcd, "ctl-1").await, candidate(&etcd, "ctl-2").await);
        assert!(first.attempt(own).await.unwrap());
        assert!(!second.attempt(own).await.unwrap());
        assert!(first.attempt(own).await.unwrap(), "the leader refreshes its key");
        let path = "/calico/openstack/v2/no-region/neutron_election";
        let value = format!("ctl-1:{own}");
        for path in [path, "/calico/openstack/v1/neutron_election"] {
            assert_eq!(etcd.ctl(&["get", path, "--print-value-only"]).unwrap().trim(), value);
        }
        let json = etcd.ctl(&["get", path, "-w", "json"]).unwrap();
        assert!(json.contains("\"lease\":"), "{json}");

        // A third candidate on the host of a leader whose process has ended takes over at once.
        let mut child = TestProcess::quiet(&mut std::process::Command::new("true"));
        tortie_testkit::eventually("the process ends", || child.ended());
        etcd.ctl(&["put", path, &format!("ctl-1:{}", child.id())]).unwrap();
        let mut third = candidate(&etcd, "ctl-1").await;
        assert!(!third.attempt(own).await.unwrap());
        assert!(third.attempt(own).await.unwrap());
        assert!(!first.attempt(own).await.unwrap(), "the earlier leader notices");
    }
}
