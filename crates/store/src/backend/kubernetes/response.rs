//! Responses of kube-apiserver: bounded in size, and accepted only if they match the request.
//!
//! A proxy, a load balancer or a starting server may respond with status 200 and other content. If such a response
//! counted as an empty list, all policies would be deleted, so everything but the requested object or list is an error.

use super::api::ListHead;
use super::failure::KubernetesFailure;
use super::text_at;
use bytes::{Bytes, BytesMut};
use hyper::body::Body as _;
use kube::client::Body;
use kube::core::{Status, WatchEvent};
use serde_json::Value as Json;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum size of a response. A larger page of a list is requested again with fewer objects.
pub const MAX_RESPONSE_BYTES: usize = 32 << 20;
/// Maximum size of a watch event. An object has at most 1.5 MiB in etcd; as JSON it can be a few times larger.
pub const MAX_WATCH_LINE_BYTES: usize = 8 << 20;
/// Maximum number of bytes read from an error response.
const MAX_ERROR_RESPONSE_BYTES: usize = 64 << 10;

/// Kind and version of objects of which only the metadata was requested.
const PARTIAL_METADATA_KIND: &str = "PartialObjectMetadata";
const PARTIAL_METADATA_VERSION: &str = "meta.k8s.io/v1";

static REJECTED_RESPONSES: AtomicU64 = AtomicU64::new(0);

/// Returns the number of responses of API servers that this process rejected as too large or not as requested.
pub fn rejected_responses() -> u64 {
    REJECTED_RESPONSES.load(Ordering::Relaxed)
}

/// Reason for which a successful response is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResponseError {
    #[error(
        "the response to {path} is larger than {limit} bytes; check what answers at the address of the API server"
    )]
    TooLarge { path: String, limit: usize },
    #[error(
        "an event of the watch of {path} is larger than {limit} bytes; check what answers at the address of the API server"
    )]
    EventTooLarge { path: String, limit: usize },
    #[error(
        "the response to {path} cannot be read: {reason}; check what answers at the address of the API server"
    )]
    Unreadable { path: String, reason: String },
    #[error(
        "the response to {path} is {found:?} and not {expected:?}; check what answers at the address of the API server"
    )]
    WrongIdentity { path: String, expected: String, found: String },
    #[error("the response to {path} has no {field}; check what answers at the address of the API server")]
    MissingField { path: String, field: &'static str },
}

impl ResponseError {
    /// Counts the error and converts it to a failure.
    pub fn count(self) -> KubernetesFailure {
        REJECTED_RESPONSES.fetch_add(1, Ordering::Relaxed);
        KubernetesFailure::Response(self)
    }
}

pub fn unreadable(path: &str, reason: &impl ToString) -> KubernetesFailure {
    ResponseError::Unreadable { path: path.to_owned(), reason: reason.to_string() }.count()
}

/// API version, namespace and name in the path of an object or of a collection.
#[derive(Debug, PartialEq, Eq)]
struct PathIdentity<'a> {
    api_version: &'a str,
    namespace: &'a str,
    name: &'a str,
}

impl PathIdentity<'_> {
    fn parse(path: &str) -> PathIdentity<'_> {
        let path = path.split('?').next().unwrap_or_default();
        let (api_version, rest) = match path.strip_prefix("/apis/") {
            Some(rest) => {
                let end = rest.match_indices('/').nth(1).map_or(rest.len(), |(end, _)| end);
                (&rest[..end], rest.get(end + 1..).unwrap_or_default())
            }
            None => {
                let rest = path.strip_prefix("/api/").unwrap_or_default();
                rest.split_once('/').unwrap_or((rest, ""))
            }
        };
        let parts: Vec<&str> = rest.split('/').collect();
        let (namespace, name) = match parts[..] {
            ["namespaces", namespace, _, name, ..] => (namespace, name),
            ["namespaces", namespace, _] => (namespace, ""),
            [_, name, ..] => ("", name),
            _ => ("", ""),
        };
        PathIdentity { api_version, namespace, name }
    }
}

/// Returns the API version and the resource name in the path of a collection.
pub fn collection_of(path: &str) -> (&str, &str) {
    let version = PathIdentity::parse(path).api_version;
    let path = path.split('?').next().unwrap_or_default();
    (version, path.rsplit('/').next().unwrap_or_default())
}

/// Checks that a discovery document is of the kind.
pub fn check_kind(path: &str, kind: &str, document: &Json) -> Result<(), KubernetesFailure> {
    let found = document.get("kind").and_then(Json::as_str).unwrap_or_default();
    if found == kind { Ok(()) } else { Err(wrong_identity(path, &[kind], &[found])) }
}

/// Checks that an object is of the kind and is the one at the path.
pub fn check_object(path: &str, kind: &str, object: &Json) -> Result<(), KubernetesFailure> {
    let PathIdentity { api_version, namespace, name } = PathIdentity::parse(path);
    let expected = [api_version, kind, namespace, name];
    let found = ["/apiVersion", "/kind", "/metadata/namespace", "/metadata/name"]
        .map(|pointer| text_at(object, pointer));
    if expected != found {
        return Err(wrong_identity(path, &expected, &found));
    }
    if text_at(object, "/metadata/resourceVersion").is_empty() {
        return Err(missing_field(path, "metadata.resourceVersion"));
    }
    Ok(())
}

/// Checks that a page belongs to a list of the kind. Every page must have the resource version of the list: a watch
/// starts there.
pub fn check_list(path: &str, kind: &str, head: &ListHead) -> Result<(), KubernetesFailure> {
    let list = format!("{kind}List");
    let expected = [PathIdentity::parse(path).api_version, &list];
    let found = [head.api_version.as_str(), head.kind.as_str()];
    let of_metadata = [PARTIAL_METADATA_VERSION, "PartialObjectMetadataList"];
    if found != expected && found != of_metadata {
        return Err(wrong_identity(path, &expected, &found));
    }
    if head.metadata.resource_version.is_empty() {
        return Err(missing_field(path, "metadata.resourceVersion"));
    }
    Ok(())
}

/// Checks that the object of a watch event is of the kind.
pub fn check_event(path: &str, kind: &str, object: &Json) -> Result<(), KubernetesFailure> {
    let expected = [PathIdentity::parse(path).api_version, kind];
    let found = [text_at(object, "/apiVersion"), text_at(object, "/kind")];
    if found != expected && found != [PARTIAL_METADATA_VERSION, PARTIAL_METADATA_KIND] {
        return Err(wrong_identity(path, &expected, &found));
    }
    for (pointer, field) in
        [("/metadata/name", "metadata.name"), ("/metadata/resourceVersion", "metadata.resourceVersion")]
    {
        if text_at(object, pointer).is_empty() {
            return Err(missing_field(path, field));
        }
    }
    Ok(())
}

fn wrong_identity(path: &str, expected: &[&str], found: &[&str]) -> KubernetesFailure {
    ResponseError::WrongIdentity {
        path: path.to_owned(),
        expected: expected.join(" ").trim().to_owned(),
        found: found.join(" ").trim().to_owned(),
    }
    .count()
}

pub fn missing_field(path: &str, field: &'static str) -> KubernetesFailure {
    ResponseError::MissingField { path: path.to_owned(), field }.count()
}

/// Returns the next bytes of a body; `None` at its end.
async fn read_chunk(body: &mut Body) -> Option<Result<Bytes, kube::Error>> {
    loop {
        let frame = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await?;
        match frame.map(hyper::body::Frame::into_data) {
            Ok(Ok(data)) => return Some(Ok(data)),
            // Trailers.
            Ok(Err(_)) => {}
            Err(error) => return Some(Err(error)),
        }
    }
}

/// Returns the body of a successful response. Any other response is converted to a failure.
pub async fn read_text(path: &str, response: http::Response<Body>) -> Result<String, KubernetesFailure> {
    let mut body = accept_status(response).await?;
    let mut text = Vec::new();
    while let Some(chunk) = read_chunk(&mut body).await {
        let chunk = chunk.map_err(KubernetesFailure::of)?;
        if text.len() + chunk.len() > MAX_RESPONSE_BYTES {
            let path = path.to_owned();
            return Err(ResponseError::TooLarge { path, limit: MAX_RESPONSE_BYTES }.count());
        }
        text.extend_from_slice(&chunk);
    }
    String::from_utf8(text).map_err(|error| unreadable(path, &error))
}

/// Returns the body of a successful response without reading it.
pub async fn accept_status(response: http::Response<Body>) -> Result<Body, KubernetesFailure> {
    let code = response.status();
    let mut body = response.into_body();
    if code.is_success() {
        return Ok(body);
    }
    let mut text = Vec::new();
    while text.len() < MAX_ERROR_RESPONSE_BYTES
        && let Some(chunk) = read_chunk(&mut body).await
    {
        text.extend_from_slice(&chunk.map_err(KubernetesFailure::of)?);
    }
    let status = serde_json::from_slice::<Status>(&text).ok().filter(|status| status.code != 0);
    let status = status.unwrap_or_else(|| {
        text.truncate(MAX_ERROR_RESPONSE_BYTES);
        Status::failure(String::from_utf8_lossy(&text).trim(), "").with_code(code.as_u16())
    });
    Err(KubernetesFailure::of_status(&status))
}

/// Reads the events of a watch, one per line.
pub struct EventReader {
    path: String,
    body: Body,
    buffer: BytesMut,
    /// Length of the buffered data that was searched for a line end without finding one.
    scanned: usize,
}

impl EventReader {
    pub fn new(path: &str, body: Body) -> EventReader {
        EventReader { path: path.to_owned(), body, buffer: BytesMut::new(), scanned: 0 }
    }

    /// Returns the next event; `None` when the server has ended the watch or the connection is lost.
    pub async fn next(&mut self) -> Option<Result<WatchEvent<Json>, KubernetesFailure>> {
        loop {
            let Some(length) = self.buffer[self.scanned..].iter().position(|byte| *byte == b'\n') else {
                self.scanned = self.buffer.len();
                if self.scanned > MAX_WATCH_LINE_BYTES {
                    let path = self.path.clone();
                    let limit = MAX_WATCH_LINE_BYTES;
                    return Some(Err(ResponseError::EventTooLarge { path, limit }.count()));
                }
                match read_chunk(&mut self.body).await {
                    Some(Ok(chunk)) => {
                        self.buffer.extend_from_slice(&chunk);
                        continue;
                    }
                    Some(Err(error)) => {
                        tracing::debug!(path = self.path, %error, "the connection of a watch is lost");
                        return None;
                    }
                    None => return self.read_rest(),
                }
            };
            let line = self.buffer.split_to(self.scanned + length + 1);
            self.scanned = 0;
            if !line.trim_ascii().is_empty() {
                return Some(self.read_line(&line));
            }
        }
    }

    pub fn into_stream(self) -> impl futures::Stream<Item = Result<WatchEvent<Json>, KubernetesFailure>> {
        futures::stream::unfold(self, async |mut reader| {
            let event = reader.next().await?;
            Some((event, reader))
        })
    }

    fn read_line(&self, line: &[u8]) -> Result<WatchEvent<Json>, KubernetesFailure> {
        let error = match serde_json::from_slice(line) {
            Ok(event) => return Ok(event),
            Err(error) => error,
        };
        match serde_json::from_slice::<Status>(line) {
            Ok(status) if status.code != 0 => Err(KubernetesFailure::of_status(&status)),
            _ => Err(unreadable(&self.path, &error)),
        }
    }

    /// Reads a last line without a line end. If it is incomplete, it is dropped: the reopened watch delivers the event
    /// again.
    fn read_rest(&mut self) -> Option<Result<WatchEvent<Json>, KubernetesFailure>> {
        let line = std::mem::take(&mut self.buffer);
        self.scanned = 0;
        if line.trim_ascii().is_empty()
            || serde_json::from_slice::<Json>(&line).is_err_and(|error| error.is_eof())
        {
            return None;
        }
        Some(self.read_line(&line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::kubernetes::api::ListMetadata;
    use serde_json::json;

    fn response(code: u16, text: &'static str) -> http::Response<Body> {
        http::Response::builder().status(code).body(Body::from(text.as_bytes().to_vec())).unwrap()
    }

    #[test]
    fn paths_name_version_namespace_and_object() {
        for (path, expected) in [
            ("/api/v1/pods", ["v1", "", ""]),
            ("/api/v1/namespaces/prod", ["v1", "", "prod"]),
            ("/api/v1/namespaces/prod/pods", ["v1", "prod", ""]),
            ("/api/v1/namespaces/prod/pods/web/status", ["v1", "prod", "web"]),
            ("/apis/apps/v1/namespaces/a/daemonsets/b?x=1/2", ["apps/v1", "a", "b"]),
            ("/apis/projectcalico.org/v3/tiers/default", ["projectcalico.org/v3", "", "default"]),
            ("/apis/projectcalico.org/v3", ["projectcalico.org/v3", "", ""]),
        ] {
            let [api_version, namespace, name] = expected;
            assert_eq!(PathIdentity::parse(path), PathIdentity { api_version, namespace, name }, "{path}");
        }
    }

    #[test]
    fn only_the_requested_object_is_accepted() {
        let tier = json!({"apiVersion": "projectcalico.org/v3", "kind": "Tier",
            "metadata": {"name": "a", "resourceVersion": "5"}});
        let check = |path: &str, object: &Json| check_object(path, "Tier", object);
        assert!(check("/apis/projectcalico.org/v3/tiers/a", &tier).is_ok());
        let rejected = rejected_responses();
        for (path, object) in [
            ("/apis/projectcalico.org/v3/tiers/b", tier.clone()),
            ("/apis/crd.projectcalico.org/v1/tiers/a", tier.clone()),
            ("/apis/projectcalico.org/v3/tiers/a", json!({})),
            ("/apis/projectcalico.org/v3/tiers/a", json!({"apiVersion": "v1", "kind": "Status"})),
            (
                "/apis/projectcalico.org/v3/tiers/a",
                json!({"apiVersion": "projectcalico.org/v3", "kind": "Tier", "metadata": {"name": "a"}}),
            ),
        ] {
            let refused = check(path, &object);
            assert!(matches!(refused, Err(KubernetesFailure::Response(_))), "{path} {object}: {refused:?}");
        }
        assert!(rejected_responses() >= rejected + 5);
    }

    #[test]
    fn only_the_requested_list_is_accepted() {
        let head = |api_version: &str, kind: &str, version: &str| ListHead {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            metadata: ListMetadata { resource_version: version.to_owned(), r#continue: None },
        };
        let path = "/apis/networking.k8s.io/v1/namespaces/a/networkpolicies";
        let check = |head: ListHead| check_list(path, "NetworkPolicy", &head);
        assert!(check(head("networking.k8s.io/v1", "NetworkPolicyList", "5")).is_ok());
        assert!(check(head("meta.k8s.io/v1", "PartialObjectMetadataList", "5")).is_ok());
        for other in [
            head("networking.k8s.io/v1", "NetworkPolicyList", ""),
            head("projectcalico.org/v3", "NetworkPolicyList", "5"),
            head("networking.k8s.io/v1", "IngressList", "5"),
            head("", "", ""),
        ] {
            assert!(matches!(check(other), Err(KubernetesFailure::Response(_))));
        }
    }

    #[tokio::test]
    async fn responses_and_events_are_bounded() {
        let large = |length: usize| http::Response::new(Body::from(vec![b' '; length]));
        assert!(read_text("/p", large(MAX_RESPONSE_BYTES)).await.is_ok());
        let refused = read_text("/p", large(MAX_RESPONSE_BYTES + 1)).await;
        assert!(
            matches!(refused, Err(KubernetesFailure::Response(ResponseError::TooLarge { .. }))),
            "{refused:?}"
        );
        let mut reader = EventReader::new("/p", Body::from(vec![b' '; MAX_WATCH_LINE_BYTES + 1]));
        let refused = reader.next().await;
        let is_bounded =
            matches!(refused, Some(Err(KubernetesFailure::Response(ResponseError::EventTooLarge { .. }))));
        assert!(is_bounded, "{refused:?}");
        let mut reader = EventReader::new("/p", Body::from(vec![b' '; MAX_WATCH_LINE_BYTES]));
        assert!(reader.next().await.is_none());
    }

    #[tokio::test]
    async fn events_are_read_line_by_line() {
        let event = r#"{"type":"ADDED","object":{"metadata":{"name":"a"}}}"#;
        let mut reader =
            EventReader::new("/p", Body::from(format!("{event}\n\n{event}\n{{\"ty").into_bytes()));
        for _ in 0..2 {
            let read = reader.next().await;
            assert!(matches!(read, Some(Ok(WatchEvent::Added(_)))), "{read:?}");
        }
        assert!(reader.next().await.is_none(), "an incomplete line is no event");
        for text in ["{}", "<html>", "{\"kind\":\"Status\"}\n"] {
            let mut reader = EventReader::new("/p", Body::from(text.as_bytes().to_vec()));
            let read = reader.next().await;
            assert!(matches!(read, Some(Err(KubernetesFailure::Response(_)))), "{text}: {read:?}");
        }
    }

    #[tokio::test]
    async fn refusals_are_read_whoever_wrote_them() {
        let html = read_text("/p", response(404, "<html>not here</html>")).await;
        assert!(matches!(html, Err(KubernetesFailure::NotServed(_))), "{html:?}");
        let redirect = read_text("/p", response(302, "")).await;
        assert!(matches!(redirect, Err(KubernetesFailure::Other(_))), "{redirect:?}");
        let empty = read_text("/p", response(200, "")).await;
        assert_eq!(empty.unwrap(), "");
    }
}
