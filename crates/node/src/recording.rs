//! `tortie node --record FILE`: writes every event before the core handles it, including the routes of BGP, followed by
//! a digest of the resulting actions of the dataplane and of BGP, so that a replay can verify that it produces the same.

use crate::engine::{EngineAction, EngineEvent, HeldAttachment, event_to_json, held_to_json};
use crate::startup::EnvironmentVariables;
use serde_json::json;
use sha1::{Digest, Sha1};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::hash::{Hash, Hasher};
use std::io::{self, BufWriter};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;
use tortie_compute::BgpEnvironment;
use tortie_sync::record::{RECORDING_VERSION, RecordedBgp, RecordingHeader, RecordingWriter};

#[derive(Debug)]
pub struct NodeRecording(RecordingWriter<BufWriter<File>>);

impl NodeRecording {
    /// Creates the file, readable only by its owner because it contains data of the datastore.
    pub fn create(path: &Path, limit: u64, header: &RecordingHeader) -> io::Result<NodeRecording> {
        let file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(path)?;
        tracing::info!(file = %path.display(), limit, "recording the events of this node");
        Ok(NodeRecording(RecordingWriter::new(BufWriter::new(file), limit, header)?))
    }

    pub fn record(&mut self, at: Duration, event: &EngineEvent) {
        match event_to_json(event) {
            Ok(json) => {
                self.0.record(at, &json);
            }
            Err(error) => tracing::warn!(%error, "an event cannot be recorded; the replay will lack it"),
        }
        if let EngineEvent::Turn = event {
            self.0.flush();
        }
    }

    /// Records a digest of the actions that the last event led to.
    pub fn record_actions(&mut self, at: Duration, actions: &[EngineAction]) {
        if let Some(digest) = digest(actions) {
            self.0.record(at, &json!({ DIGEST_KEY: digest }));
        }
    }

    /// Returns the number of events after the end of the recording.
    pub fn lost(&self) -> u64 {
        self.0.lost()
    }
}

/// Key of the lines that hold a digest.
pub const DIGEST_KEY: &str = "digest";

/// Returns a digest of the actions for the dataplane and the other consumers of the plan, or None without such actions.
pub fn digest(actions: &[EngineAction]) -> Option<String> {
    let published = actions.iter().filter(|action| !matches!(action, EngineAction::Answer { .. }));
    let mut hasher = StableHasher::default();
    let mut count = 0;
    for action in published {
        action.hash(&mut hasher);
        count += 1;
    }
    (count > 0).then(|| format!("{:016x}", hasher.finish()))
}

/// Hashes the fields of a value with SHA-1, with the same result in every process of a build, independent of `Debug` output.
#[derive(Default)]
struct StableHasher(Sha1);

impl Hasher for StableHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn write_u16(&mut self, number: u16) {
        self.write(&number.to_le_bytes());
    }

    fn write_u32(&mut self, number: u32) {
        self.write(&number.to_le_bytes());
    }

    fn write_u64(&mut self, number: u64) {
        self.write(&number.to_le_bytes());
    }

    fn write_u128(&mut self, number: u128) {
        self.write(&number.to_le_bytes());
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn finish(&self) -> u64 {
        self.0.clone().finalize().iter().take(8).fold(0, |digest, byte| digest << 8 | u64::from(*byte))
    }
}

/// Returns the header of a recording. Settings that concern the datastore are left out, because some are secret.
pub fn build_header(
    node: &str,
    variables: &EnvironmentVariables,
    file: &[(String, String)],
    bgp: Option<&BgpEnvironment>,
    held: &[HeldAttachment],
) -> RecordingHeader {
    let variables = variables.0.iter().filter(|(name, _)| name.to_ascii_lowercase().starts_with("felix_"));
    let file = file.iter().map(|(name, value)| (name, value));
    RecordingHeader {
        version: RECORDING_VERSION,
        node: node.to_owned(),
        environment: list_harmless_settings(variables),
        settings: list_harmless_settings(file),
        bgp: bgp.map(|bgp| RecordedBgp { router_id: bgp.router_id.clone(), by_bird: bgp.by_bird }),
        held: held.iter().filter_map(|held| held_to_json(held).ok()).collect(),
    }
}

fn list_harmless_settings<'s>(
    settings: impl Iterator<Item = (&'s String, &'s String)>,
) -> BTreeMap<String, String> {
    let harmless = settings.filter(|(name, _)| {
        let name = name.to_ascii_lowercase();
        !["etcd", "password", "secret"].iter().any(|word| name.contains(word))
    });
    harmless.map(|(name, value)| (name.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{PlanChange, WaiterId};
    use std::collections::BTreeSet;
    use tortie_plan::{NodePlan, PlanUpdate};

    #[test]
    fn the_digest_covers_the_dataplane_and_bgp() {
        let answer = EngineAction::Answer { waiter: WaiterId(1), outcome: Ok(()) };
        assert_eq!(digest(&[answer]), None);
        let publish = |change| digest(&[EngineAction::Publish { consumer: "bgp", change }]).unwrap();
        let apply = |updates| digest(&[EngineAction::Apply { settings: None, updates }]).unwrap();
        let digests = BTreeSet::from([
            publish(PlanChange::Resync(Box::default())),
            publish(PlanChange::Resync(Box::new(NodePlan { learnt_complete: true, ..NodePlan::default() }))),
            publish(PlanChange::Updates(vec![PlanUpdate::LearntComplete])),
            apply(vec![PlanUpdate::LearntComplete]),
            apply(Vec::new()),
        ]);
        assert_eq!(digests.len(), 5, "{digests:?}");
        assert!(digests.contains(&apply(Vec::new())), "it is stable");
    }
}
