//! JSON encoding of the core's events, as used in recordings.

use super::core::HeldAttachment;
use super::event::{ApplyFailure, EngineEvent, FailureScope, HttpProxyChange, LearntRoute, WaiterId};
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use tortie_plan::WorkloadId;
use tortie_sync::record::json::{
    RecordFormatError, entry_from_json, entry_to_json, feed_from_json, feed_to_json, field, key_from_json,
    key_to_json, revision,
};

/// Local events, which contain neither keys nor values of the datastore.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum LocalEvent {
    Learnt { routes: Vec<LearntRoute>, complete: bool },
    Announced(Vec<WorkloadIdJson>),
    HttpProxies(Vec<HttpProxyChange>),
    Started,
    Applied(Vec<ApplyFailure>),
    Stopped(String),
    Turn,
}

pub fn held_to_json(held: &HeldAttachment) -> Result<Json, RecordFormatError> {
    match &held.endpoint {
        Some(endpoint) => entry_to_json(&held.key, endpoint, None),
        None => Ok(json!({ "key": key_to_json(&held.key)? })),
    }
}

pub fn held_from_json(json: &Json) -> Result<HeldAttachment, RecordFormatError> {
    if json.get("value").is_none() {
        return Ok(HeldAttachment { key: key_from_json(field(json, "key")?)?, endpoint: None });
    }
    let (key, value, _) = entry_from_json(json)?;
    Ok(HeldAttachment { key, endpoint: Some(value) })
}

pub fn event_to_json(event: &EngineEvent) -> Result<Json, RecordFormatError> {
    let local = match event {
        EngineEvent::Feed(feed) => return feed_to_json(feed),
        EngineEvent::Attach { waiter, key, value, profile } => {
            let own = match &**value {
                tortie_model::StoreValue::Resource(resource) => {
                    resource.metadata().resource_version.parse().ok()
                }
                _ => None,
            };
            let entry = entry_to_json(key, value, own.as_ref())?;
            return Ok(json!({ "attach": { "waiter": waiter.0, "entry": entry, "profile": profile } }));
        }
        EngineEvent::Detach { waiter, key, revision } => {
            let mut detach = json!({ "waiter": waiter.0, "key": key_to_json(key)? });
            if let (Json::Object(detach), Some(revision)) = (&mut detach, revision) {
                detach.insert("revision".to_owned(), revision.to_string().into());
            }
            return Ok(json!({ "detach": detach }));
        }
        EngineEvent::Hold { waiter, key } => {
            return Ok(json!({ "hold": { "waiter": waiter.0, "key": key_to_json(key)? } }));
        }
        EngineEvent::Learnt { routes, complete } => {
            LocalEvent::Learnt { routes: routes.clone(), complete: *complete }
        }
        EngineEvent::Announced(ids) => {
            LocalEvent::Announced(ids.iter().cloned().map(WorkloadIdJson).collect())
        }
        EngineEvent::HttpProxies(changes) => LocalEvent::HttpProxies(changes.clone()),
        EngineEvent::Started => LocalEvent::Started,
        EngineEvent::Applied(failures) => LocalEvent::Applied(failures.clone()),
        EngineEvent::Stopped(reason) => LocalEvent::Stopped(reason.clone()),
        EngineEvent::Turn => LocalEvent::Turn,
    };
    serde_json::to_value(local).map_err(|error| unknown(&error.to_string()))
}

pub fn event_from_json(json: &Json) -> Result<EngineEvent, RecordFormatError> {
    if let Some(event) = feed_from_json(json)? {
        return Ok(EngineEvent::Feed(event));
    }
    let waiter =
        |event: &Json| field(event, "waiter").map(|waiter| WaiterId(waiter.as_u64().unwrap_or_default()));
    if let Some(attach) = json.get("attach") {
        let (key, value, _) = entry_from_json(field(attach, "entry")?)?;
        let profile = attach.get("profile").and_then(Json::as_str).map(str::to_owned);
        return Ok(EngineEvent::Attach { waiter: waiter(attach)?, key, value: Box::new(value), profile });
    }
    if let Some(detach) = json.get("detach") {
        let revision = detach.get("revision").is_some().then(|| revision(detach)).transpose()?;
        let key = key_from_json(field(detach, "key")?)?;
        return Ok(EngineEvent::Detach { waiter: waiter(detach)?, key, revision });
    }
    if let Some(hold) = json.get("hold") {
        return Ok(EngineEvent::Hold { waiter: waiter(hold)?, key: key_from_json(field(hold, "key")?)? });
    }
    let local = LocalEvent::deserialize(json).map_err(|error| unknown(&format!("{error}: {json}")))?;
    Ok(match local {
        LocalEvent::Learnt { routes, complete } => EngineEvent::Learnt { routes, complete },
        LocalEvent::Announced(ids) => {
            EngineEvent::Announced(ids.into_iter().map(|WorkloadIdJson(id)| id).collect())
        }
        LocalEvent::HttpProxies(changes) => EngineEvent::HttpProxies(changes),
        LocalEvent::Started => EngineEvent::Started,
        LocalEvent::Applied(failures) => EngineEvent::Applied(failures),
        LocalEvent::Stopped(reason) => EngineEvent::Stopped(reason),
        LocalEvent::Turn => EngineEvent::Turn,
    })
}

fn unknown(text: &str) -> RecordFormatError {
    RecordFormatError::Text { what: "event", text: text.to_owned() }
}

/// The fields of [`WorkloadId`], which does not implement serde traits.
#[derive(Serialize, Deserialize)]
#[serde(remote = "WorkloadId")]
pub(super) struct WorkloadIdFields {
    orchestrator: String,
    workload: String,
    endpoint: String,
}

#[derive(Serialize, Deserialize)]
struct WorkloadIdJson(#[serde(with = "WorkloadIdFields")] WorkloadId);

/// Serialisation of [`FailureScope`]: `null` represents everything.
pub(super) mod concerns {
    use super::{FailureScope, WorkloadIdJson};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(concerns: &FailureScope, serializer: S) -> Result<S::Ok, S::Error> {
        let workloads: Option<Vec<WorkloadIdJson>> = match concerns {
            FailureScope::Everything => None,
            FailureScope::Workloads(workloads) => {
                Some(workloads.iter().cloned().map(WorkloadIdJson).collect())
            }
        };
        workloads.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<FailureScope, D::Error> {
        let workloads = Option::<Vec<WorkloadIdJson>>::deserialize(deserializer)?;
        Ok(workloads.map_or(FailureScope::Everything, |workloads| {
            FailureScope::Workloads(workloads.into_iter().map(|WorkloadIdJson(id)| id).collect())
        }))
    }
}
