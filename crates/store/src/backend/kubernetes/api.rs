//! Requests to the API server, each with a limit on its time.

use super::failure::Failure;
use crate::Limits;
use http::{Method, Request};
use kube::core::WatchEvent;
use serde::Deserialize;
use serde_json::{Value as Json, json};
use std::pin::Pin;
use std::time::Duration;

pub const MERGE_PATCH: &str = "application/merge-patch+json";
pub const STRATEGIC_MERGE_PATCH: &str = "application/strategic-merge-patch+json";
const JSON: &str = "application/json";

/// The server ends a watch after about this long; then it is opened again where it ended.
const WATCH_SECONDS: u64 = 290;

#[derive(Clone)]
pub struct Api {
    client: kube::Client,
    pub limits: Limits,
}

/// A page of a list.
#[derive(Debug, Deserialize)]
pub struct List {
    #[serde(default)]
    pub metadata: ListMetadata,
    #[serde(default)]
    pub items: Vec<Json>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ListMetadata {
    pub resource_version: String,
    pub r#continue: Option<String>,
}

/// What to list.
#[derive(Clone, Debug, Default)]
pub struct ListQuery {
    pub limit: usize,
    pub after: Option<String>,
    pub labels: Option<String>,
}

pub type Events = Pin<Box<dyn futures::Stream<Item = Result<WatchEvent<Json>, kube::Error>> + Send>>;

impl Api {
    pub fn new(client: kube::Client, limits: Limits) -> Api {
        Api { client, limits }
    }

    /// The API groups that the server has.
    pub async fn groups(&self) -> Result<Vec<String>, Failure> {
        let listed = self.limited(self.client.list_api_groups()).await?;
        Ok(listed.groups.into_iter().map(|group| group.name).collect())
    }

    pub async fn get(&self, path: &str) -> Result<Json, Failure> {
        self.send(Method::GET, path, JSON, None).await
    }

    pub async fn post(&self, path: &str, body: &Json) -> Result<Json, Failure> {
        self.send(Method::POST, path, JSON, Some(body)).await
    }

    pub async fn put(&self, path: &str, body: &Json) -> Result<Json, Failure> {
        self.send(Method::PUT, path, JSON, Some(body)).await
    }

    pub async fn patch(&self, path: &str, form: &'static str, body: &Json) -> Result<Json, Failure> {
        self.send(Method::PATCH, path, form, Some(body)).await
    }

    /// Only the object with this UID, at this resource version if one is given.
    pub async fn delete(&self, path: &str, uid: &str, resource_version: Option<&str>) -> Result<(), Failure> {
        let mut preconditions = json!({ "uid": uid });
        if let Some(version) = resource_version {
            preconditions["resourceVersion"] = version.into();
        }
        let body = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions});
        self.send(Method::DELETE, path, JSON, Some(&body)).await.map(|_| ())
    }

    pub async fn list(&self, path: &str, query: &ListQuery) -> Result<List, Failure> {
        let mut pairs = vec![("limit", query.limit.to_string())];
        pairs.extend(query.after.clone().map(|token| ("continue", token)));
        pairs.extend(query.labels.clone().map(|labels| ("labelSelector", labels)));
        let list = self.send(Method::GET, &with_query(path, &pairs), JSON, None).await?;
        serde_json::from_value(list).map_err(|error| {
            Failure::Other(crate::Error::Datastore(format!(
                "{path} answers with something else than a list: {error}"
            )))
        })
    }

    pub async fn watch(&self, path: &str, labels: Option<&str>, after: &str) -> Result<Events, Failure> {
        let mut pairs = vec![
            ("watch", "1".to_owned()),
            ("allowWatchBookmarks", "true".to_owned()),
            ("timeoutSeconds", WATCH_SECONDS.to_string()),
            ("resourceVersion", after.to_owned()),
        ];
        pairs.extend(labels.map(|labels| ("labelSelector", labels.to_owned())));
        let request = request(Method::GET, &with_query(path, &pairs), JSON, Vec::new())?;
        let events = self.limited(self.client.request_events::<Json>(request)).await?;
        Ok(Box::pin(events))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        form: &str,
        body: Option<&Json>,
    ) -> Result<Json, Failure> {
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        self.limited(self.client.request::<Json>(request(method, path, form, body)?)).await
    }

    async fn limited<T>(&self, call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Failure> {
        let limit: Duration = self.limits.request;
        match tokio::time::timeout(limit, call).await {
            Ok(answer) => answer.map_err(Failure::of),
            Err(_) => Err(Failure::silent(limit.as_secs_f64())),
        }
    }
}

fn request(method: Method, path: &str, form: &str, body: Vec<u8>) -> Result<Request<Vec<u8>>, Failure> {
    let request =
        Request::builder().method(method).uri(path).header(http::header::CONTENT_TYPE, form).body(body);
    request.map_err(|error| Failure::Other(crate::Error::Datastore(format!("'{path}' is no path: {error}"))))
}

fn with_query(path: &str, pairs: &[(&str, String)]) -> String {
    let pairs: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    format!("{path}?{}", pairs.join("&"))
}

/// Percent-encoding of everything that is not plainly allowed in a query.
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

impl std::fmt::Debug for Api {
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
