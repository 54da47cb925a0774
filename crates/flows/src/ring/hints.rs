//! Hints: the distinct values of one field of the matching flows, sorted.

use super::filter::{all_hits, check_filter};
use super::intern::InternId;
use super::key::decode_trace;
use super::query::{MAX_RESULT_BYTES, QueryError};
use super::window::TimeWindow;
use super::{FlowRing, FlowSlot};
use crate::proto::{Filter, FilterType, PolicyHit, PolicyKind};
use std::collections::BTreeSet;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HintError {
    #[error("type: the type of the hints is missing")]
    Unspecified,
    #[error("type: the value {value} is unknown")]
    Unknown { value: i32 },
}

impl FlowRing {
    /// Returns the values of a field. Hits of profiles are skipped.
    pub fn list_hints(
        &self,
        kind: i32,
        window: TimeWindow,
        filter: &Filter,
        now: i64,
    ) -> Result<Vec<String>, QueryError> {
        check_filter(filter)?;
        let kind = FilterType::try_from(kind).map_err(|_| HintError::Unknown { value: kind })?;
        if kind == FilterType::Unspecified {
            return Err(HintError::Unspecified.into());
        }
        let buckets = window.buckets(self, now);
        let table = if hint_name(kind, None).is_some() { &self.names } else { &self.traces };
        let mut used = vec![false; table.capacity()];
        self.visit_matching(filter, &buckets, |_, slot, _| {
            let id = hint_name(kind, Some(slot)).unwrap_or(slot.key.trace);
            used[id.index()] = true;
        });
        let used = used.iter().enumerate().filter(|(_, used)| **used).map(|(id, _)| table.get_index(id));
        let mut bytes = 0;
        if hint_name(kind, None).is_some() {
            let mut values: Vec<&[u8]> = used.collect();
            bytes += values.iter().map(|value| value.len() + size_of::<String>()).sum::<usize>();
            if bytes > MAX_RESULT_BYTES {
                return Err(QueryError::TooLarge);
            }
            values.sort_unstable();
            return Ok(values.into_iter().map(|value| String::from_utf8_lossy(value).into_owned()).collect());
        }
        let mut values = BTreeSet::new();
        for trace in used {
            let trace = decode_trace(trace);
            let hits = all_hits(&trace).filter(|hit| hit.kind != i32::from(PolicyKind::Profile));
            for value in hits.map(|hit| hint_value(kind, hit)) {
                let value_bytes = value.len() + size_of::<String>();
                bytes += if values.insert(value) { value_bytes } else { 0 };
            }
            if bytes > MAX_RESULT_BYTES {
                return Err(QueryError::TooLarge);
            }
        }
        Ok(values.into_iter().collect())
    }
}

/// Returns the name of the flow that hints of this kind consist of, or `None` if they come from the policy trace. Without a
/// slot, any name is returned.
fn hint_name(kind: FilterType, slot: Option<&FlowSlot>) -> Option<InternId> {
    let name = |select: fn(&FlowSlot) -> InternId| Some(slot.map_or(InternId::EMPTY, select));
    match kind {
        FilterType::SourceName => name(|slot| slot.key.source_name),
        FilterType::SourceNamespace => name(|slot| slot.key.source_namespace),
        FilterType::DestName => name(|slot| slot.key.dest_name),
        FilterType::DestNamespace => name(|slot| slot.key.dest_namespace),
        _ => None,
    }
}

fn hint_value(kind: FilterType, hit: &PolicyHit) -> String {
    match kind {
        FilterType::PolicyTier => hit.tier.clone(),
        FilterType::PolicyName => hit.name.clone(),
        FilterType::PolicyNamespace => hit.namespace.clone(),
        _ => hit.kind().as_str_name().to_owned(),
    }
}
