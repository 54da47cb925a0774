//! `tortie node --record FILE`: writes every event before the core handles it, followed by a digest of the resulting
//! dataplane actions, so that a replay can verify that it produces the same actions.

use crate::engine::{EngineAction, EngineEvent, HeldAttachment, event_to_json, held_to_json};
use crate::startup::EnvironmentVariables;
use serde_json::json;
use sha1::{Digest, Sha1};
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::fs::{File, OpenOptions};
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

/// Returns a digest of the dataplane actions, or None without such actions.
pub fn digest(actions: &[EngineAction]) -> Option<String> {
    struct HashWriter(Sha1);
    impl fmt::Write for HashWriter {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.update(text);
            Ok(())
        }
    }
    let mut hashed = HashWriter(Sha1::new());
    let mut plans = actions
        .iter()
        .filter(|action| matches!(action, EngineAction::Start { .. } | EngineAction::Apply { .. }));
    plans.clone().next()?;
    plans.try_for_each(|action| write!(hashed, "{action:?}")).ok()?;
    Some(hashed.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns the header of a recording. Settings that concern the datastore are left out, because some are secret.
pub fn header(
    node: &str,
    variables: &EnvironmentVariables,
    file: &[(String, String)],
    bgp: Option<&BgpEnvironment>,
    held: &[HeldAttachment],
) -> RecordingHeader {
    let harmless = |(name, _): &(&String, &String)| {
        let name = name.to_ascii_lowercase();
        !["etcd", "password", "secret"].iter().any(|word| name.contains(word))
    };
    let felix = |(name, _): &(&String, &String)| name.to_ascii_lowercase().starts_with("felix_");
    let owned = |(name, value): (&String, &String)| (name.clone(), value.clone());
    let variables = variables.0.iter().filter(felix).filter(harmless).map(owned);
    let file = file.iter().map(|(name, value)| (name, value)).filter(harmless).map(owned);
    RecordingHeader {
        version: RECORDING_VERSION,
        node: node.to_owned(),
        environment: variables.collect::<BTreeMap<_, _>>(),
        settings: file.collect::<BTreeMap<_, _>>(),
        bgp: bgp.map(|bgp| RecordedBgp { router_id: bgp.router_id.clone(), by_bird: bgp.by_bird }),
        held: held.iter().filter_map(|held| held_to_json(held).ok()).collect(),
    }
}
