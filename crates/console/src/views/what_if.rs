//! The effect of a change that is not applied: mistakes in the YAML, and the pairs of endpoints whose verdict changes.

use super::{ApiResult, ClusterResponse, SharedState};
use crate::error::{ApiError, render_json};
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use tortie_ctl::cli::NamespaceArgs;
use tortie_ctl::input::{InputError, parse_documents};
use tortie_ctl::policy::{ChangeError, DiffSummary, load_for_change, summarize_change};
use tortie_model::Resource;

/// Maximum number of blocks of similar changes in a response.
const MAX_CHANGES: usize = 500;
/// Maximum number of documents of a change.
const MAX_DOCUMENTS: usize = 200;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ChangeRequest {
    yaml: String,
    /// Compare with the objects deleted.
    #[serde(default)]
    delete: bool,
    /// Only look for mistakes.
    #[serde(default)]
    validate_only: bool,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct ChangeResponse {
    /// The objects of the documents that can be read.
    objects: Vec<String>,
    mistakes: Vec<DocumentMistake>,
    #[serde(skip_serializing_if = "Option::is_none")]
    effect: Option<DiffSummary>,
    /// Number of blocks of changes that were left out.
    omitted: usize,
}

#[derive(Debug, PartialEq, Serialize)]
struct DocumentMistake {
    /// Counted from 1; none if the text cannot be split into documents.
    document: Option<usize>,
    /// Path of the field, as `calicoctl` prints it: `Spec.Ingress[0].Protocol`.
    field: Option<String>,
    value: Option<String>,
    reason: String,
}

pub async fn compare(State(state): SharedState, body: Bytes) -> ApiResult {
    let request: ChangeRequest = serde_json::from_slice(&body)
        .map_err(|error| ApiError::Parameter { field: "body", reason: error.to_string() })?;
    let (resources, mistakes) = read_documents(&request.yaml, request.delete);
    let objects = resources.iter().map(Resource::identify).collect();
    let mut response = ChangeResponse { objects, mistakes, ..ChangeResponse::default() };
    let is_comparable = response.mistakes.is_empty() && !resources.is_empty();
    let (snapshot, freshness) = state.snapshots.get().await?;
    if is_comparable && !request.validate_only {
        let place = state.take_computation().await?;
        let mut before = snapshot.cluster.clone();
        let namespace = NamespaceArgs { namespace: None };
        let resources = load_for_change(state.snapshots.store(), &mut before, resources, &namespace).await?;
        let computed = tokio::task::spawn_blocking(move || {
            // The computation goes on if the client disconnects, so it keeps its place.
            let _place = place;
            summarize_change(&before, resources, request.delete)
        });
        match computed.await.map_err(|_| ApiError::Internal)? {
            Ok(mut effect) => {
                response.omitted = effect.changes.len().saturating_sub(MAX_CHANGES);
                effect.changes.truncate(MAX_CHANGES);
                response.effect = Some(effect);
            }
            Err(error) => response.mistakes.extend(describe_refusal(error)),
        }
    }
    Ok(render_json(StatusCode::OK, &ClusterResponse { freshness, data: response }))
}

/// Reads the documents. Each that cannot be read or is invalid is a mistake.
fn read_documents(yaml: &str, delete: bool) -> (Vec<Resource>, Vec<DocumentMistake>) {
    let of_text = |reason: String| DocumentMistake { document: None, field: None, value: None, reason };
    let documents = match parse_documents(yaml.as_bytes()) {
        Ok(documents) => documents,
        Err(error) => return (Vec::new(), vec![of_text(error.to_string())]),
    };
    if documents.len() > MAX_DOCUMENTS {
        let reason = format!("{} documents are too many, at most {MAX_DOCUMENTS}", documents.len());
        return (Vec::new(), vec![of_text(reason)]);
    }
    let (mut resources, mut mistakes) = (Vec::new(), Vec::new());
    for (index, parsed) in documents.into_iter().enumerate() {
        let document = Some(index + 1);
        let resource = match parsed {
            Ok(resource) => resource,
            Err(InputError::Document(reason)) => {
                mistakes.push(DocumentMistake { document, field: None, value: None, reason });
                continue;
            }
            Err(other) => {
                mistakes.push(of_text(other.to_string()));
                continue;
            }
        };
        let mut checked = resource.clone();
        checked.set_defaults();
        if let Err(error) = checked.validate()
            && !delete
        {
            mistakes.extend(error.errors.into_iter().map(|error| DocumentMistake {
                document,
                field: Some(error.name),
                value: Some(error.value),
                reason: error.reason,
            }));
        }
        resources.push(resource);
    }
    (resources, mistakes)
}

/// Returns the reasons why the datastore would refuse the change.
fn describe_refusal(error: ChangeError) -> Vec<DocumentMistake> {
    let about = |field: Option<String>, value: Option<String>, reason: String| DocumentMistake {
        document: None,
        field,
        value,
        reason,
    };
    match error {
        ChangeError::Invalid { source, .. } => {
            let errors = source.errors.into_iter();
            errors.map(|error| about(Some(error.name), Some(error.value), error.reason)).collect()
        }
        other => vec![about(None, None, other.to_string())],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = "apiVersion: projectcalico.org/v3\nkind: NetworkPolicy\n\
                          metadata: {name: web, namespace: shop}\n";

    #[test]
    fn mistakes_name_document_and_field() {
        let yaml = format!(
            "{POLICY}spec: {{ingress: [{{action: Allow, protocol: TCP}}]}}\n---\n\
             {POLICY}spec: {{ingress: [{{action: Allow, destination: {{ports: [80]}}}}]}}\n---\n\
             {POLICY}spec: {{selectr: all()}}\n"
        );
        let (resources, mistakes) = read_documents(&yaml, false);
        assert_eq!(resources.len(), 2);
        assert_eq!(mistakes.len(), 2, "{mistakes:?}");
        assert_eq!(mistakes[0].document, Some(2));
        assert!(mistakes[0].field.as_ref().unwrap().contains("Ingress[0]"), "{mistakes:?}");
        assert_eq!(mistakes[1].document, Some(3));
        assert!(mistakes[1].reason.contains("selectr"), "{mistakes:?}");
        let (_, mistakes) = read_documents("a: [", false);
        assert_eq!(mistakes[0].document, None);
        assert_eq!(read_documents(&yaml, true).1.len(), 1, "only names count for a deletion");
    }

    #[test]
    fn the_number_of_documents_is_bounded() {
        let yaml = vec![POLICY; MAX_DOCUMENTS + 1].join("---\n");
        let (resources, mistakes) = read_documents(&yaml, false);
        assert!(resources.is_empty());
        assert!(mistakes[0].reason.contains("too many"), "{mistakes:?}");
    }
}
