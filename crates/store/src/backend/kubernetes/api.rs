//! Requests to kube-apiserver, each with a timeout.

use super::failure::KubernetesFailure;
use super::response::{self, EventReader, ResponseError};
use super::servers::ApiServers;
use crate::StoreLimits;
use crate::config::KubernetesTarget;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Method, Request};
use kube::core::WatchEvent;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::{Value as Json, json};
use std::ops::Range;
use std::pin::Pin;
use std::time::Duration;

pub const MERGE_PATCH_MEDIA_TYPE: &str = "application/merge-patch+json";
pub const STRATEGIC_MERGE_PATCH_MEDIA_TYPE: &str = "application/strategic-merge-patch+json";
const JSON_MEDIA_TYPE: &str = "application/json";
/// Accept header for lists with only the metadata of the objects, if the server supports it.
const METADATA_LIST_MEDIA_TYPES: &str =
    "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json";
const METADATA_MEDIA_TYPES: &str =
    "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json";

/// Number of objects per page of a list.
pub const DEFAULT_PAGE_LIMIT: usize = 500;
/// Factor by which the limit of a page is reduced if the page was too large.
const PAGE_REDUCTION_FACTOR: usize = 8;

/// Duration after which the server ends a watch; random, so that not all watches end at once. The client then reopens
/// it where it ended.
const WATCH_TIMEOUT_SECONDS: Range<u64> = 300..600;

#[derive(Clone)]
pub struct KubernetesApi {
    servers: ApiServers,
    pub limits: StoreLimits,
}

/// A page of a list.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", bound(deserialize = "T: Deserialize<'de>"))]
pub struct ListResponse<T> {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    metadata: ListMetadata,
    /// kube-apiserver may send null for an empty list. A response without the field is not a list.
    #[serde(deserialize_with = "or_nothing")]
    pub items: Vec<T>,
}

/// Type and metadata of a list.
#[derive(Debug, Default)]
pub struct ListHead {
    pub api_version: String,
    pub kind: String,
    pub metadata: ListMetadata,
}

impl<T> ListResponse<T> {
    pub fn into_parts(self) -> (ListHead, Vec<T>) {
        let ListResponse { api_version, kind, metadata, items } = self;
        (ListHead { api_version, kind, metadata }, items)
    }
}

fn or_nothing<'de, T: Deserialize<'de>, D: Deserializer<'de>>(items: D) -> Result<Vec<T>, D::Error> {
    Option::<Vec<T>>::deserialize(items).map(Option::unwrap_or_default)
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ListMetadata {
    pub resource_version: String,
    pub r#continue: Option<String>,
}

/// Requested part of the objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ObjectDetail {
    #[default]
    Whole,
    Metadata,
}

/// Parameters of a list request.
#[derive(Clone, Debug, Default)]
pub struct ListQuery {
    pub limit: usize,
    pub after: Option<String>,
    pub labels: Option<String>,
    pub detail: ObjectDetail,
}

impl ListQuery {
    /// Reduces the limit if the page was too large. Returns whether to repeat the request.
    pub fn shrink(&mut self, failure: &KubernetesFailure) -> bool {
        let is_smaller =
            self.limit > 1 && matches!(failure, KubernetesFailure::Response(ResponseError::TooLarge { .. }));
        if is_smaller {
            self.limit = (self.limit / PAGE_REDUCTION_FACTOR).max(1);
        }
        is_smaller
    }
}

pub type WatchEventStream =
    Pin<Box<dyn futures::Stream<Item = Result<WatchEvent<Json>, KubernetesFailure>> + Send>>;

impl KubernetesApi {
    pub async fn connect(
        target: &KubernetesTarget,
        limits: StoreLimits,
    ) -> Result<KubernetesApi, crate::StoreError> {
        Ok(KubernetesApi { servers: ApiServers::connect(target, &limits).await?, limits })
    }

    /// Returns the API groups and versions (`apps/v1`) that the server has, without the core group.
    pub async fn list_group_versions(&self) -> Result<Vec<String>, KubernetesFailure> {
        const PATH: &str = "/apis";
        let list: DiscoveredGroupList = self.get_discovery(PATH, "APIGroupList").await?;
        if list.groups.is_empty() {
            return Err(response::missing_field(PATH, "groups"));
        }
        let versions = list.groups.into_iter().flat_map(|group| group.versions);
        Ok(versions.map(|version| version.group_version).collect())
    }

    /// Returns whether the server has a collection, according to its discovery documents. A 404 alone is no proof: a
    /// load balancer without a backend sends one too.
    pub async fn is_served(&self, path: &str) -> Result<bool, KubernetesFailure> {
        let (version, plural) = response::collection_of(path);
        let is_core = !version.contains('/');
        if !is_core && !self.list_group_versions().await?.iter().any(|served| served == version) {
            return Ok(false);
        }
        let discovery = if is_core { format!("/api/{version}") } else { format!("/apis/{version}") };
        let list: ServedResourceList = self.get_discovery(&discovery, "APIResourceList").await?;
        if list.group_version != version {
            return Err(response::missing_field(&discovery, "groupVersion"));
        }
        Ok(list.resources.iter().any(|resource| resource.name == plural))
    }

    async fn get_discovery<T: DeserializeOwned>(
        &self,
        path: &str,
        kind: &str,
    ) -> Result<T, KubernetesFailure> {
        let document = self.send(Method::GET, path, JSON_MEDIA_TYPE, None).await?;
        response::check_kind(path, kind, &document)?;
        serde_json::from_value(document).map_err(|error| response::unreadable(path, &error))
    }

    /// Fails if kube-apiserver does not respond.
    pub async fn check(&self) -> Result<(), KubernetesFailure> {
        const PATH: &str = "/version";
        let version = self.send(Method::GET, PATH, JSON_MEDIA_TYPE, None).await?;
        match version.get("gitVersion").and_then(Json::as_str) {
            Some(_) => Ok(()),
            None => Err(response::missing_field(PATH, "gitVersion")),
        }
    }

    /// Returns the object at the path, after checking that it is of the kind.
    pub async fn get(&self, kind: &str, path: &str) -> Result<Json, KubernetesFailure> {
        let object = self.send(Method::GET, path, JSON_MEDIA_TYPE, None).await?;
        response::check_object(path, kind, &object)?;
        Ok(object)
    }

    /// Returns all objects of a collection, reading page by page.
    pub async fn get_all<T: DeserializeOwned>(
        &self,
        kind: &str,
        path: &str,
    ) -> Result<Vec<T>, KubernetesFailure> {
        let mut all = Vec::new();
        let mut query = ListQuery { limit: DEFAULT_PAGE_LIMIT, ..ListQuery::default() };
        loop {
            let text = match self.list(path, &query).await {
                Err(failure) if query.shrink(&failure) => continue,
                answer => answer?,
            };
            let list: ListResponse<T> =
                serde_json::from_str(&text).map_err(|error| response::unreadable(path, &error))?;
            let (head, mut items) = list.into_parts();
            response::check_list(path, kind, &head)?;
            all.append(&mut items);
            query.after = head.metadata.r#continue.filter(|token| !token.is_empty());
            if query.after.is_none() {
                return Ok(all);
            }
        }
    }

    pub async fn post(&self, path: &str, body: &Json) -> Result<Json, KubernetesFailure> {
        self.send(Method::POST, path, JSON_MEDIA_TYPE, Some(body)).await
    }

    pub async fn put(&self, path: &str, body: &Json) -> Result<Json, KubernetesFailure> {
        self.send(Method::PUT, path, JSON_MEDIA_TYPE, Some(body)).await
    }

    pub async fn patch(
        &self,
        path: &str,
        form: &'static str,
        body: &Json,
    ) -> Result<Json, KubernetesFailure> {
        self.send(Method::PATCH, path, form, Some(body)).await
    }

    /// Deletes the object if it has this UID and, if given, this resource version.
    pub async fn delete(
        &self,
        path: &str,
        uid: &str,
        resource_version: Option<&str>,
    ) -> Result<(), KubernetesFailure> {
        let mut preconditions = json!({ "uid": uid });
        if let Some(version) = resource_version {
            preconditions["resourceVersion"] = version.into();
        }
        let body = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions});
        match self.send(Method::DELETE, path, JSON_MEDIA_TYPE, Some(&body)).await {
            Ok(_) => Ok(()),
            Err(KubernetesFailure::Conflict) if resource_version.is_none() => {
                Err(self.explain_uid_conflict(path, uid).await)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Returns the failure of a request whose only condition is a UID and that met a conflict: the intended object is
    /// missing only if the current one has another UID. Webhooks and exhausted retries also report conflicts.
    pub async fn explain_uid_conflict(&self, path: &str, uid: &str) -> KubernetesFailure {
        match self.send(Method::GET, path, JSON_MEDIA_TYPE, None).await {
            Ok(object) => match object.pointer("/metadata/uid").and_then(Json::as_str) {
                Some(other) if other != uid => {
                    KubernetesFailure::Missing("another object has the same name".to_owned())
                }
                _ => KubernetesFailure::Conflict,
            },
            Err(failure) => failure,
        }
    }

    /// Returns the text of a page; the caller decodes the items.
    pub async fn list(&self, path: &str, query: &ListQuery) -> Result<String, KubernetesFailure> {
        let mut pairs = vec![("limit", query.limit.to_string())];
        pairs.extend(query.after.clone().map(|token| ("continue", token)));
        pairs.extend(query.labels.clone().map(|labels| ("labelSelector", labels)));
        let accept = match query.detail {
            ObjectDetail::Whole => JSON_MEDIA_TYPE,
            ObjectDetail::Metadata => METADATA_LIST_MEDIA_TYPES,
        };
        self.text(Method::GET, &with_query(path, &pairs), [JSON_MEDIA_TYPE, accept], None).await
    }

    /// Opens a watch. `path` may already contain a query.
    pub async fn watch(
        &self,
        path: &str,
        labels: Option<&str>,
        detail: ObjectDetail,
        after: &str,
    ) -> Result<WatchEventStream, KubernetesFailure> {
        let mut pairs = vec![
            ("watch", "1".to_owned()),
            ("allowWatchBookmarks", "true".to_owned()),
            ("timeoutSeconds", rand::random_range(WATCH_TIMEOUT_SECONDS).to_string()),
            ("resourceVersion", after.to_owned()),
        ];
        pairs.extend(labels.map(|labels| ("labelSelector", labels.to_owned())));
        let accept = match detail {
            ObjectDetail::Whole => JSON_MEDIA_TYPE,
            ObjectDetail::Metadata => METADATA_MEDIA_TYPES,
        };
        let path = with_query(path, &pairs);
        self.anywhere(&Method::GET, |client| {
            let request = request(Method::GET, &path, [JSON_MEDIA_TYPE, accept], Vec::new());
            let path = &path;
            async move {
                let request = request?.map(kube::client::Body::from);
                let opened = async {
                    let response = client.send(request).await.map_err(KubernetesFailure::of)?;
                    response::accept_status(response).await
                };
                let reader = EventReader::new(path, self.limited(opened).await?);
                Ok(Box::pin(reader.into_stream()) as WatchEventStream)
            }
        })
        .await
    }

    /// Watches one object of a collection, after a resource version or, if it is empty, from the current state.
    pub async fn watch_named(
        &self,
        path: &str,
        name: &str,
        detail: ObjectDetail,
        after: &str,
    ) -> Result<WatchEventStream, KubernetesFailure> {
        let path = format!("{path}?fieldSelector={}", encoded(&format!("metadata.name={name}")));
        self.watch(&path, None, detail, after).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        form: &str,
        body: Option<&Json>,
    ) -> Result<Json, KubernetesFailure> {
        let text = self.text(method, path, [form, JSON_MEDIA_TYPE], body).await?;
        serde_json::from_str(&text).map_err(|error| response::unreadable(path, &error))
    }

    /// Sends a request and returns the response body. `forms` are the Content-Type of the request and the Accept
    /// header.
    async fn text(
        &self,
        method: Method,
        path: &str,
        forms: [&str; 2],
        body: Option<&Json>,
    ) -> Result<String, KubernetesFailure> {
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        self.anywhere(&method, |client| {
            let request = request(method.clone(), path, forms, body.clone());
            async move {
                let request = request?.map(kube::client::Body::from);
                let answered = async {
                    let response = client.send(request).await.map_err(KubernetesFailure::of)?;
                    response::read_text(path, response).await
                };
                self.limited(answered).await
            }
        })
        .await
    }

    /// Sends a request to the current server. If that is unreachable, tries the others in turn, unless it may have
    /// executed a write. If it rejects the credentials, reloads the settings and retries once.
    async fn anywhere<T, A: Future<Output = Result<T, KubernetesFailure>>>(
        &self,
        method: &Method,
        ask: impl Fn(kube::Client) -> A,
    ) -> Result<T, KubernetesFailure> {
        let mut left = self.servers.len();
        let mut renewed = false;
        loop {
            let Some(asked) = self.servers.current() else {
                return Err(KubernetesFailure::Unreachable {
                    reason: "no address is known".into(),
                    unasked: true,
                });
            };
            let answer = ask(asked.client.clone()).await;
            match &answer {
                Err(KubernetesFailure::Unreachable { unasked, .. }) => {
                    // Other pooled connections to a server that stopped responding are dead too; each would cost the
                    // full request timeout.
                    if !unasked {
                        self.servers.renew(&asked).await;
                    }
                    self.servers.leave(&asked);
                    left = left.saturating_sub(1);
                    if left == 0 || !(*unasked || *method == Method::GET) {
                        return answer;
                    }
                }
                Err(KubernetesFailure::Unknown(_)) if !renewed && self.servers.renew(&asked).await => {
                    renewed = true
                }
                _ => return answer,
            }
        }
    }

    async fn limited<T>(
        &self,
        call: impl Future<Output = Result<T, KubernetesFailure>>,
    ) -> Result<T, KubernetesFailure> {
        let limit: Duration = self.limits.request;
        match tokio::time::timeout(limit, call).await {
            Ok(answer) => answer,
            Err(_) => Err(KubernetesFailure::silent(limit.as_secs_f64())),
        }
    }
}

#[derive(Deserialize)]
struct DiscoveredGroupList {
    groups: Vec<DiscoveredGroup>,
}

#[derive(Deserialize)]
struct DiscoveredGroup {
    versions: Vec<GroupVersion>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GroupVersion {
    group_version: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServedResourceList {
    group_version: String,
    resources: Vec<ServedResource>,
}

#[derive(Deserialize)]
struct ServedResource {
    name: String,
}

fn request(
    method: Method,
    path: &str,
    [form, accept]: [&str; 2],
    body: Vec<u8>,
) -> Result<Request<Vec<u8>>, KubernetesFailure> {
    let request = Request::builder().method(method).uri(path);
    let request = request.header(CONTENT_TYPE, form).header(ACCEPT, accept).body(body);
    request.map_err(|error| {
        KubernetesFailure::Other(crate::StoreError::Datastore(format!("'{path}' is no path: {error}")))
    })
}

fn with_query(path: &str, pairs: &[(&str, String)]) -> String {
    let pairs: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    let joint = if path.contains('?') { '&' } else { '?' };
    format!("{path}{joint}{}", pairs.join("&"))
}

/// Percent-encodes all characters except the unreserved ones of RFC 3986.
fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                char::from(byte).to_string()
            }
            other => format!("%{other:02X}"),
        })
        .collect()
}

impl std::fmt::Debug for KubernetesApi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the Kubernetes API")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_encoded() {
        let pairs = [("limit", "5".to_owned()), ("labelSelector", "a in (b,c),!d/e".to_owned())];
        assert_eq!(
            with_query("/api/v1/pods", &pairs),
            "/api/v1/pods?limit=5&labelSelector=a%20in%20%28b%2Cc%29%2C%21d%2Fe"
        );
    }
}
