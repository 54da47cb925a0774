//! Handles API requests: authenticates, authorizes, executes them and encodes the responses.

use crate::access::Access;
use crate::body::{self, BodyError, BodyReader};
use crate::media::{self, Encoding, Form, Wanted};
use crate::metrics::Metrics;
use crate::refusal::Refusal;
use crate::request::{self, Request, Target, Verb};
use crate::resources::API_VERSION;
use crate::server::{Answers, Peer, response};
use crate::storage::{Listed, Storage, read_version};
use crate::table::{self, Include};
use crate::verbs::{Answer, Asked, Verbs};
use crate::watching::{self, Endings, Start};
use crate::workers::WorkerPool;
use crate::{discovery, openapi};
use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::header::{
    ACCEPT, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH, RETRY_AFTER, USER_AGENT, WARNING,
};
use http::{HeaderMap, Method, Response, StatusCode};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{Semaphore, watch};
use tortie_model::codec;

/// Maximum number of concurrent requests, not counting watches.
const MOST_REQUESTS: usize = 400;
const MOST_WATCHES: usize = 10_000;
/// Maximum number of warnings in a response.
const MOST_WARNINGS: usize = 20;
const TEXT: &str = "text/plain; charset=utf-8";

pub struct Handler {
    storage: Storage,
    access: Access,
    metrics: Arc<Metrics>,
    bodies: BodyReader,
    workers: WorkerPool,
    requests: Arc<Semaphore>,
    watches: Arc<Semaphore>,
    /// Becomes true when the server is about to stop.
    stopping: watch::Receiver<bool>,
}

impl Handler {
    pub fn new(storage: Storage, access: Access, stopping: watch::Receiver<bool>) -> Handler {
        let metrics = Arc::new(Metrics::new());
        Handler {
            storage,
            access,
            workers: WorkerPool::new(metrics.clone()),
            bodies: BodyReader::default(),
            metrics,
            requests: Arc::new(Semaphore::new(MOST_REQUESTS)),
            watches: Arc::new(Semaphore::new(MOST_WATCHES)),
            stopping,
        }
    }

    /// Returns the error to authenticated users; others get an authentication error and learn nothing about existing
    /// paths.
    async fn refuse_known(
        &self,
        refusal: Refusal,
        headers: &HeaderMap,
        peer: &Peer,
    ) -> Result<Response<Body>, Refusal> {
        self.access.authenticate(&peer.chain, headers).await?;
        Err(refusal)
    }

    async fn objects(
        &self,
        request: Request,
        headers: &HeaderMap,
        content: Body,
        peer: &Peer,
    ) -> Result<Response<Body>, Refusal> {
        let user = self.access.authenticate(&peer.chain, headers).await?;
        self.access.authorise(&user, &request).await?;
        request::check_names(&request)?;
        let wanted = media::negotiate(header(headers, &ACCEPT))?;
        let verbs = Verbs { storage: &self.storage, access: &self.access, workers: &self.workers };
        let manager = request::manager(&request.options, header(headers, &USER_AGENT));
        let content_type = header(headers, &CONTENT_TYPE).to_owned();
        let mut asked = Asked { request, user, manager, content_type, body: Bytes::new() };
        if asked.request.verb == Verb::Watch {
            return self.watch(verbs, &asked, wanted).await;
        }
        // Read before the request counts against the limit: a slow sender must not take a slot from others.
        let body =
            self.bodies.read(content, &asked.user.name).await.map_err(|error| self.refuse_body(error))?;
        let Ok(_room) = self.requests.try_acquire() else {
            self.metrics.count_refused("request");
            return Err(Refusal::too_many_requests());
        };
        asked.body = body.bytes.clone();
        let asked = Arc::new(asked);
        let answer = verbs.carry_out(&asked).await?;
        Ok(written(&asked.request, answer, wanted))
    }

    fn refuse_body(&self, error: BodyError) -> Refusal {
        match error {
            BodyError::TooLarge => Refusal::too_large(body::LIMIT),
            BodyError::TooSlow => Refusal::request_timeout(error.to_string()),
            BodyError::NoRoom => {
                self.metrics.count_refused("body");
                Refusal::too_many_requests()
            }
            BodyError::Broken => Refusal::bad_request(error.to_string()),
        }
    }

    async fn watch(
        &self,
        verbs: Verbs<'_>,
        asked: &Asked,
        wanted: Wanted,
    ) -> Result<Response<Body>, Refusal> {
        let Ok(room) = self.watches.clone().try_acquire_owned() else {
            self.metrics.count_refused("watch");
            return Err(Refusal::too_many_requests());
        };
        let request = &asked.request;
        let options = &request.options;
        let endings = Endings { shutdown: self.stopping.clone(), tiers: verbs.tier_changes(request).await? };
        let selection = verbs.selection(asked).await?;
        let start = match options.resource_version.as_str() {
            _ if options.send_initial_events => Start::Everything { marked: options.bookmarks },
            "" | "0" => Start::Everything { marked: false },
            version => Start::After(read_version(version)?),
        };
        let cache = self.storage.cache(request.served.kind).await?;
        let what = watching::Wanted {
            served: request.served,
            namespace: request.namespace.clone(),
            selection,
            form: wanted.form,
            include: include(request),
            bookmarks: options.bookmarks,
            timeout_seconds: options.timeout_seconds,
        };
        let open: Box<dyn Send> = Box::new((room, self.metrics.watching(request.served.kind.plural())));
        let body = match watching::watch(cache, what, start, endings, open) {
            Ok(events) => Body::from_stream(events),
            // Watch clients expect the error in the event stream.
            Err(refusal) => Body::from(watching::error(&refusal)),
        };
        Ok(response(StatusCode::OK, "application/json", body))
    }

    /// Handles paths that are not about objects.
    async fn path(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
        peer: &Peer,
    ) -> Result<Response<Body>, Refusal> {
        // Liveness must not depend on other components.
        if path == "/livez" || path == "/healthz" {
            return Ok(response(StatusCode::OK, TEXT, Body::from("ok")));
        }
        let user = self.access.authenticate(&peer.chain, headers).await?;
        let known = path.is_empty() || path == "/apis" || KNOWN.contains(&path);
        if !known {
            return Err(Refusal::no_such_path());
        }
        self.access.authorise_path(&user, method_name(method), path).await?;
        if !matches!(*method, Method::GET | Method::HEAD) {
            return Err(Refusal::method_not_allowed(
                "the server does not allow this method on the requested resource",
            ));
        }
        self.known_path(path, headers).await
    }

    async fn known_path(&self, path: &str, headers: &HeaderMap) -> Result<Response<Body>, Refusal> {
        let accept = header(headers, &ACCEPT);
        match path {
            "/readyz" => Ok(self.ready().await),
            "/metrics" => {
                let form = "text/plain; version=0.0.4; charset=utf-8";
                Ok(response(StatusCode::OK, form, Body::from(self.metrics.text())))
            }
            "/openapi/v2" => Ok(document(&openapi::V2, headers)),
            "/openapi/v3" => Ok(document(&openapi::V3_INDEX, headers)),
            "/openapi/v3/apis/projectcalico.org/v3" => Ok(document(&openapi::V3, headers)),
            "/apis" => match media::negotiate(accept)?.form {
                Form::Aggregated => {
                    let form = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
                    Ok(response(StatusCode::OK, form, Body::from(discovery::aggregated().to_string())))
                }
                _ => {
                    Ok(encoded(StatusCode::OK, &discovery::api_groups(), media::negotiate(accept)?.encoding))
                }
            },
            "/apis/projectcalico.org" => {
                Ok(encoded(StatusCode::OK, &discovery::api_group(), media::negotiate(accept)?.encoding))
            }
            "/apis/projectcalico.org/v3" => {
                Ok(encoded(StatusCode::OK, &discovery::api_resources(), media::negotiate(accept)?.encoding))
            }
            "/version" => Ok(encoded(StatusCode::OK, &version(), Encoding::Json)),
            _ => Ok(encoded(StatusCode::OK, &json!({ "paths": KNOWN }), Encoding::Json)),
        }
    }

    async fn ready(&self) -> Response<Body> {
        if *self.stopping.borrow() {
            return response(StatusCode::SERVICE_UNAVAILABLE, TEXT, Body::from("stopping\n"));
        }
        match self.storage.check().await {
            Ok(()) => response(StatusCode::OK, TEXT, Body::from("ok")),
            Err(error) => response(
                StatusCode::SERVICE_UNAVAILABLE,
                TEXT,
                Body::from(format!("the datastore: {error}\n")),
            ),
        }
    }
}

impl Answers for Handler {
    async fn answer(&self, http: http::Request<Body>, peer: &Peer) -> Response<Body> {
        let began = Instant::now();
        let (parts, content) = http.into_parts();
        let target = request::parse(&parts.method, parts.uri.path(), parts.uri.query().unwrap_or_default());
        let (verb, resource) = match &target {
            Ok(Target::Objects(request)) => (request.verb.name(), request.served.kind.plural()),
            _ => (method_name(&parts.method), ""),
        };
        let encoding = media::negotiate(header(&parts.headers, &ACCEPT)).map(|wanted| wanted.encoding);
        let answered = match target {
            Ok(Target::Objects(request)) => self.objects(*request, &parts.headers, content, peer).await,
            Ok(Target::Path(path)) => self.path(&parts.method, &path, &parts.headers, peer).await,
            Err(refusal) => self.refuse_known(refusal, &parts.headers, peer).await,
        };
        let response = answered.unwrap_or_else(|refusal| refused(&refusal, encoding.unwrap_or_default()));
        self.metrics.answered(verb, resource, response.status().as_u16(), began.elapsed());
        response
    }

    fn count_closed(&self, connection: &'static str) {
        self.metrics.count_refused(connection);
    }
}

const KNOWN: &[&str] = &[
    "/apis",
    "/apis/projectcalico.org",
    "/apis/projectcalico.org/v3",
    "/healthz",
    "/livez",
    "/metrics",
    "/openapi/v2",
    "/openapi/v3",
    "/openapi/v3/apis/projectcalico.org/v3",
    "/readyz",
    "/version",
];

fn version() -> Value {
    json!({"major": "3", "minor": "", "gitVersion": format!("v{}", env!("CARGO_PKG_VERSION")), "platform": "linux"})
}

fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET | Method::HEAD => "get",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "other",
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &http::HeaderName) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn include(request: &Request) -> Include {
    match request.options.include_object.as_str() {
        "None" => Include::None,
        "Object" => Include::Object,
        _ => Include::Metadata,
    }
}

fn encoded(code: StatusCode, value: &Value, encoding: Encoding) -> Response<Body> {
    match encoding {
        Encoding::Json => response(code, "application/json", Body::from(value.to_string())),
        Encoding::Yaml => response(code, "application/yaml", Body::from(codec::to_yaml(value))),
    }
}

pub fn refused(refusal: &Refusal, encoding: Encoding) -> Response<Body> {
    let code = StatusCode::from_u16(refusal.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = encoded(code, &refusal.to_status(), encoding);
    if let Some(seconds) = refusal.retry_after() {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Returns a schema document, or 304 if the client has this version.
fn document(document: &openapi::Document, headers: &HeaderMap) -> Response<Body> {
    let tag = format!("\"{}\"", document.hash);
    let mut response = match header(headers, &IF_NONE_MATCH).split(',').any(|known| known.trim() == tag) {
        true => response(StatusCode::NOT_MODIFIED, "application/json", Body::empty()),
        false => response(StatusCode::OK, "application/json", Body::from(document.text.clone())),
    };
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(ETAG, tag);
    }
    response
}

fn written(request: &Request, answer: Answer, wanted: Wanted) -> Response<Body> {
    match answer {
        Answer::Done(status) => encoded(StatusCode::OK, &status, wanted.encoding),
        Answer::Object { object, code, warnings } => {
            let code = StatusCode::from_u16(code).unwrap_or(StatusCode::OK);
            let shown = match wanted.form {
                Form::Whole | Form::Aggregated => object,
                Form::Metadata => table::partial(&object),
                Form::Table => {
                    let version = object.pointer("/metadata/resourceVersion").cloned().unwrap_or_default();
                    let now = jiff::Timestamp::now().as_second();
                    let rows = vec![table::row(request.served, &object, include(request), now)];
                    table::table(
                        table::definitions(request.served),
                        rows,
                        json!({ "resourceVersion": version }),
                    )
                }
            };
            let mut response = encoded(code, &shown, wanted.encoding);
            for warning in warnings.iter().take(MOST_WARNINGS) {
                let text = format!("299 - \"{}\"", warning.replace('\\', "\\\\").replace('"', "\\\""));
                if let Ok(value) = HeaderValue::from_str(&text) {
                    response.headers_mut().append(WARNING, value);
                }
            }
            response
        }
        Answer::List(listed) => list(request, &listed, wanted),
    }
}

fn list(request: &Request, listed: &Listed, wanted: Wanted) -> Response<Body> {
    let mut metadata = json!({"resourceVersion": listed.revision});
    if !listed.continuation.is_empty() {
        metadata["continue"] = listed.continuation.as_str().into();
    }
    match wanted.form {
        Form::Table => {
            let now = jiff::Timestamp::now().as_second();
            let row = |object: &Arc<crate::stored::Stored>| {
                table::row(request.served, &object.value(), include(request), now)
            };
            let rows = listed.items.iter().map(row).collect();
            let table = table::table(table::definitions(request.served), rows, metadata);
            encoded(StatusCode::OK, &table, wanted.encoding)
        }
        Form::Metadata => {
            let items: Vec<Value> =
                listed.items.iter().map(|object| table::partial(&object.value())).collect();
            let list = json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata, "items": items});
            encoded(StatusCode::OK, &list, wanted.encoding)
        }
        Form::Whole | Form::Aggregated => {
            let text = whole(request, listed, &metadata);
            match wanted.encoding {
                Encoding::Json => response(StatusCode::OK, "application/json", Body::from(text)),
                Encoding::Yaml => {
                    let value: Value = serde_json::from_slice(&text).unwrap_or_default();
                    encoded(StatusCode::OK, &value, Encoding::Yaml)
                }
            }
        }
    }
}

/// Concatenates the JSON texts of the objects.
fn whole(request: &Request, listed: &Listed, metadata: &Value) -> Bytes {
    let kind = request.served.kind.list_name();
    let head =
        format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"{API_VERSION}\",\"metadata\":{metadata},\"items\":[");
    let size = listed.items.iter().map(|object| object.json.len() + 1).sum::<usize>();
    let mut text = BytesMut::with_capacity(head.len() + size + 2);
    text.extend_from_slice(head.as_bytes());
    for (index, object) in listed.items.iter().enumerate() {
        if index > 0 {
            text.extend_from_slice(b",");
        }
        text.extend_from_slice(&object.json);
    }
    text.extend_from_slice(b"]}");
    text.freeze()
}
