//! `tortie node --record FILE`: every event that the core takes is written down before it does.

use crate::engine::{Event, event_to_json};
use crate::startup::Variables;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;
use tortie_compute::BgpEnvironment;
use tortie_model::Key;
use tortie_sync::record::json::key_to_json;
use tortie_sync::record::{BgpHeader, Header, Recorder, VERSION};

#[derive(Debug)]
pub struct Recording(Recorder<BufWriter<File>>);

impl Recording {
    /// Readable by its owner alone: it has what the datastore has.
    pub fn create(path: &Path, limit: u64, header: &Header) -> io::Result<Recording> {
        let file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(path)?;
        tracing::info!(file = %path.display(), limit, "recording the events of this node");
        Ok(Recording(Recorder::new(BufWriter::new(file), limit, header)?))
    }

    pub fn record(&mut self, at: Duration, event: &Event) {
        match event_to_json(event) {
            Ok(json) => {
                self.0.record(at, &json);
            }
            Err(error) => tracing::warn!(%error, "an event cannot be recorded; the replay will lack it"),
        }
        if let Event::Turn = event {
            self.0.flush();
        }
    }

    /// Events that came after the recording had ended.
    pub fn lost(&self) -> u64 {
        self.0.lost()
    }
}

/// What the node is before anything happens. Settings that name the datastore stay out: some are secret.
pub fn header<'a>(
    node: &str,
    variables: &Variables,
    file: &[(String, String)],
    bgp: Option<&BgpEnvironment>,
    held: impl Iterator<Item = &'a Key>,
) -> Header {
    let harmless = |(name, _): &(&String, &String)| {
        let name = name.to_ascii_lowercase();
        !["etcd", "password", "secret"].iter().any(|word| name.contains(word))
    };
    let felix = |(name, _): &(&String, &String)| name.to_ascii_lowercase().starts_with("felix_");
    let owned = |(name, value): (&String, &String)| (name.clone(), value.clone());
    let variables = variables.0.iter().filter(felix).filter(harmless).map(owned);
    let file = file.iter().map(|(name, value)| (name, value)).filter(harmless).map(owned);
    Header {
        version: VERSION,
        node: node.to_owned(),
        environment: variables.collect::<BTreeMap<_, _>>(),
        settings: file.collect::<BTreeMap<_, _>>(),
        bgp: bgp.map(|bgp| BgpHeader { router_id: bgp.router_id.clone(), by_bird: bgp.by_bird }),
        held: held.filter_map(|key| key_to_json(key).ok()).collect(),
    }
}
