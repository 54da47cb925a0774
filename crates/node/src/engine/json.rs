//! JSON encoding of the core's events, as used in recordings.

use super::core::Held;
use super::event::{Concerns, Event, Failure, LearntRoute, WaiterId};
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use tortie_plan::WorkloadId;
use tortie_sync::record::json::{
    FormatError, entry_from_json, entry_to_json, feed_from_json, feed_to_json, field, key_from_json,
    key_to_json, revision,
};

/// Local events, which contain neither keys nor values of the datastore.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Local {
    Learnt { routes: Vec<LearntRoute>, complete: bool },
    Announced(Vec<OneWorkload>),
    Started,
    Applied(Vec<Failure>),
    Stopped(String),
    Turn,
}

pub fn held_to_json(held: &Held) -> Result<Json, FormatError> {
    match &held.endpoint {
        Some(endpoint) => entry_to_json(&held.key, endpoint, None),
        None => Ok(json!({ "key": key_to_json(&held.key)? })),
    }
}

pub fn held_from_json(json: &Json) -> Result<Held, FormatError> {
    if json.get("value").is_none() {
        return Ok(Held { key: key_from_json(field(json, "key")?)?, endpoint: None });
    }
    let (key, value, _) = entry_from_json(json)?;
    Ok(Held { key, endpoint: Some(value) })
}

pub fn event_to_json(event: &Event) -> Result<Json, FormatError> {
    let local = match event {
        Event::Feed(feed) => return feed_to_json(feed),
        Event::Attach { waiter, key, value, profile } => {
            let own = match &**value {
                tortie_model::Value::Resource(resource) => resource.metadata().resource_version.parse().ok(),
                _ => None,
            };
            let entry = entry_to_json(key, value, own.as_ref())?;
            return Ok(json!({ "attach": { "waiter": waiter.0, "entry": entry, "profile": profile } }));
        }
        Event::Detach { waiter, key, revision } => {
            let mut detach = json!({ "waiter": waiter.0, "key": key_to_json(key)? });
            if let (Json::Object(detach), Some(revision)) = (&mut detach, revision) {
                detach.insert("revision".to_owned(), revision.to_string().into());
            }
            return Ok(json!({ "detach": detach }));
        }
        Event::Hold { waiter, key } => {
            return Ok(json!({ "hold": { "waiter": waiter.0, "key": key_to_json(key)? } }));
        }
        Event::Learnt { routes, complete } => Local::Learnt { routes: routes.clone(), complete: *complete },
        Event::Announced(ids) => Local::Announced(ids.iter().cloned().map(OneWorkload).collect()),
        Event::Started => Local::Started,
        Event::Applied(failures) => Local::Applied(failures.clone()),
        Event::Stopped(reason) => Local::Stopped(reason.clone()),
        Event::Turn => Local::Turn,
    };
    serde_json::to_value(local).map_err(|error| unknown(&error.to_string()))
}

pub fn event_from_json(json: &Json) -> Result<Event, FormatError> {
    if let Some(event) = feed_from_json(json)? {
        return Ok(Event::Feed(event));
    }
    let waiter =
        |event: &Json| field(event, "waiter").map(|waiter| WaiterId(waiter.as_u64().unwrap_or_default()));
    if let Some(attach) = json.get("attach") {
        let (key, value, _) = entry_from_json(field(attach, "entry")?)?;
        let profile = attach.get("profile").and_then(Json::as_str).map(str::to_owned);
        return Ok(Event::Attach { waiter: waiter(attach)?, key, value: Box::new(value), profile });
    }
    if let Some(detach) = json.get("detach") {
        let revision = detach.get("revision").is_some().then(|| revision(detach)).transpose()?;
        let key = key_from_json(field(detach, "key")?)?;
        return Ok(Event::Detach { waiter: waiter(detach)?, key, revision });
    }
    if let Some(hold) = json.get("hold") {
        return Ok(Event::Hold { waiter: waiter(hold)?, key: key_from_json(field(hold, "key")?)? });
    }
    let local = Local::deserialize(json).map_err(|error| unknown(&format!("{error}: {json}")))?;
    Ok(match local {
        Local::Learnt { routes, complete } => Event::Learnt { routes, complete },
        Local::Announced(ids) => Event::Announced(ids.into_iter().map(|OneWorkload(id)| id).collect()),
        Local::Started => Event::Started,
        Local::Applied(failures) => Event::Applied(failures),
        Local::Stopped(reason) => Event::Stopped(reason),
        Local::Turn => Event::Turn,
    })
}

fn unknown(text: &str) -> FormatError {
    FormatError::Text { what: "event", text: text.to_owned() }
}

/// The fields of [`WorkloadId`], which does not implement serde traits.
#[derive(Serialize, Deserialize)]
#[serde(remote = "WorkloadId")]
struct WorkloadIdForm {
    orchestrator: String,
    workload: String,
    endpoint: String,
}

#[derive(Serialize, Deserialize)]
struct OneWorkload(#[serde(with = "WorkloadIdForm")] WorkloadId);

/// Serialisation of [`Concerns`]: `null` represents everything.
pub(super) mod concerns {
    use super::{Concerns, OneWorkload};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(concerns: &Concerns, serializer: S) -> Result<S::Ok, S::Error> {
        let workloads: Option<Vec<OneWorkload>> = match concerns {
            Concerns::Everything => None,
            Concerns::Workloads(workloads) => Some(workloads.iter().cloned().map(OneWorkload).collect()),
        };
        workloads.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Concerns, D::Error> {
        let workloads = Option::<Vec<OneWorkload>>::deserialize(deserializer)?;
        Ok(workloads.map_or(Concerns::Everything, |workloads| {
            Concerns::Workloads(workloads.into_iter().map(|OneWorkload(id)| id).collect())
        }))
    }
}
