//! Handles API requests: authenticates, authorizes, executes them and encodes the responses.

use crate::access::AccessControl;
use crate::body::{self, BodyError, BodyReader};
use crate::media::{self, ResponseEncoding, ResponseForm, ResponseFormat};
use crate::metrics::ApiServerMetrics;
use crate::refusal::{StatusError, StatusReason};
use crate::request::{self, ObjectRequest, RequestTarget, RequestVerb};
use crate::resources::API_VERSION;
use crate::server::{
    ConnectionPeer, RequestHandler, build_metrics_response, build_response, build_text_response,
};
use crate::storage::{ObjectList, ObjectStorage, parse_version};
use crate::table::{self, IncludeObject};
use crate::verbs::{VerbExecutor, VerbRequest, VerbResponse};
use crate::watching::{self, WatchEndings, WatchStart};
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
const MAX_CONCURRENT_REQUESTS: usize = 400;
const MAX_OPEN_WATCHES: usize = 10_000;
/// Maximum number of warnings in a response.
const MAX_RESPONSE_WARNINGS: usize = 20;

pub struct ApiHandler {
    storage: ObjectStorage,
    access: AccessControl,
    metrics: Arc<ApiServerMetrics>,
    bodies: BodyReader,
    workers: WorkerPool,
    requests: Arc<Semaphore>,
    watches: Arc<Semaphore>,
    /// Becomes true when the server is about to stop.
    stopping: watch::Receiver<bool>,
}

impl ApiHandler {
    pub fn new(storage: ObjectStorage, access: AccessControl, stopping: watch::Receiver<bool>) -> ApiHandler {
        let metrics = Arc::new(ApiServerMetrics::new());
        ApiHandler {
            storage,
            access,
            workers: WorkerPool::new(metrics.clone()),
            bodies: BodyReader::default(),
            metrics,
            requests: Arc::new(Semaphore::new(MAX_CONCURRENT_REQUESTS)),
            watches: Arc::new(Semaphore::new(MAX_OPEN_WATCHES)),
            stopping,
        }
    }

    /// Returns the error if the user is authenticated, else an authentication error: unauthenticated clients must not
    /// learn which paths exist.
    async fn refuse_authenticated(
        &self,
        refusal: StatusError,
        headers: &HeaderMap,
        peer: &ConnectionPeer,
    ) -> Result<Response<Body>, StatusError> {
        self.access.authenticate(&peer.chain, headers).await?;
        Err(refusal)
    }

    async fn answer_objects(
        &self,
        request: ObjectRequest,
        headers: &HeaderMap,
        content: Body,
        peer: &ConnectionPeer,
    ) -> Result<Response<Body>, StatusError> {
        let user = self.access.authenticate(&peer.chain, headers).await?;
        self.access.authorise(&user, &request).await?;
        request::check_names(&request)?;
        let wanted = media::negotiate_format(read_header(headers, &ACCEPT))?;
        let verbs = VerbExecutor { storage: &self.storage, access: &self.access, workers: &self.workers };
        let manager = request::choose_field_manager(&request.options, read_header(headers, &USER_AGENT));
        let content_type = read_header(headers, &CONTENT_TYPE).to_owned();
        let mut call = VerbRequest { request, user, manager, content_type, body: Bytes::new() };
        if call.request.verb == RequestVerb::Watch {
            return self.watch(verbs, &call, wanted).await;
        }
        // Read the body before the request counts against the limit: a slow sender must not occupy a slot.
        let body =
            self.bodies.read(content, &call.user.name).await.map_err(|error| self.refuse_body(error))?;
        let Ok(_room) = self.requests.try_acquire() else {
            self.metrics.count_refused("request");
            return Err(StatusError::too_many_requests());
        };
        call.body = body.bytes.clone();
        let call = Arc::new(call);
        let answer = verbs.execute(&call).await?;
        Ok(encode_response(&call.request, answer, wanted))
    }

    fn refuse_body(&self, error: BodyError) -> StatusError {
        match error {
            BodyError::TooLarge => StatusError::too_large(body::MAX_BODY_BYTES),
            BodyError::TooSlow => StatusError::new(StatusReason::Timeout, error.to_string()),
            BodyError::NoRoom => {
                self.metrics.count_refused("body");
                StatusError::too_many_requests()
            }
            BodyError::Broken => StatusError::bad_request(error.to_string()),
        }
    }

    async fn watch(
        &self,
        verbs: VerbExecutor<'_>,
        call: &VerbRequest,
        wanted: ResponseFormat,
    ) -> Result<Response<Body>, StatusError> {
        let Ok(room) = self.watches.clone().try_acquire_owned() else {
            self.metrics.count_refused("watch");
            return Err(StatusError::too_many_requests());
        };
        let request = &call.request;
        let options = &request.options;
        let endings =
            WatchEndings { shutdown: self.stopping.clone(), tiers: verbs.tier_changes(request).await? };
        let selection = verbs.selection(call).await?;
        let start = match options.resource_version.as_str() {
            _ if options.send_initial_events => WatchStart::Everything { marked: options.bookmarks },
            "" | "0" => WatchStart::Everything { marked: false },
            version => WatchStart::After(parse_version(version)?),
        };
        let cache = self.storage.cache(request.served.kind).await?;
        let what = watching::WatchParameters {
            served: request.served,
            namespace: request.namespace.clone(),
            selection,
            form: wanted.form,
            include: parse_include(request),
            bookmarks: options.bookmarks,
            timeout_seconds: options.timeout_seconds,
        };
        let open: Box<dyn Send> = Box::new((room, self.metrics.watching(request.served.kind.plural())));
        let body = match watching::start_watch(cache, what, start, endings, open) {
            Ok(events) => Body::from_stream(events),
            // Watch clients expect the error in the event stream.
            Err(refusal) => Body::from(watching::build_error_event(&refusal)),
        };
        Ok(build_response(StatusCode::OK, "application/json", body))
    }

    /// Handles paths that are not about objects.
    async fn answer_path(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
        peer: &ConnectionPeer,
    ) -> Result<Response<Body>, StatusError> {
        // Liveness must not depend on other components.
        if path == "/livez" || path == "/healthz" {
            return Ok(build_text_response(StatusCode::OK, "ok"));
        }
        let user = self.access.authenticate(&peer.chain, headers).await?;
        if !path.is_empty() && !KNOWN_PATHS.contains(&path) {
            return Err(StatusError::no_such_path());
        }
        self.access.authorise_path(&user, choose_method_name(method), path).await?;
        if !matches!(*method, Method::GET | Method::HEAD) {
            return Err(StatusError::method_not_allowed(
                "the server does not allow this method on the requested resource",
            ));
        }
        self.answer_known_path(path, headers).await
    }

    async fn answer_known_path(
        &self,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<Response<Body>, StatusError> {
        match path {
            "/readyz" => Ok(self.check_readiness().await),
            "/metrics" => Ok(build_metrics_response(self.metrics.encode())),
            "/openapi/v2" => Ok(answer_document(&openapi::V2_DOCUMENT, headers)),
            "/openapi/v3" => Ok(answer_document(&openapi::V3_INDEX, headers)),
            "/openapi/v3/apis/projectcalico.org/v3" => Ok(answer_document(&openapi::V3_DOCUMENT, headers)),
            "/version" => Ok(encode(StatusCode::OK, &describe_version(), ResponseEncoding::Json)),
            "/apis" | "/apis/projectcalico.org" | "/apis/projectcalico.org/v3" => {
                let wanted = media::negotiate_format(read_header(headers, &ACCEPT))?;
                let document = match path {
                    "/apis" if wanted.form == ResponseForm::Aggregated => {
                        let form = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
                        let document = discovery::build_aggregated_list().to_string();
                        return Ok(build_response(StatusCode::OK, form, document.into()));
                    }
                    "/apis" => discovery::build_api_group_list(),
                    "/apis/projectcalico.org" => discovery::build_api_group(),
                    _ => discovery::build_resource_list(),
                };
                Ok(encode(StatusCode::OK, &document, wanted.encoding))
            }
            _ => Ok(encode(StatusCode::OK, &json!({ "paths": KNOWN_PATHS }), ResponseEncoding::Json)),
        }
    }

    async fn check_readiness(&self) -> Response<Body> {
        if *self.stopping.borrow() {
            return build_text_response(StatusCode::SERVICE_UNAVAILABLE, "stopping\n");
        }
        match self.storage.check_store().await {
            Ok(()) => build_text_response(StatusCode::OK, "ok"),
            Err(error) => {
                build_text_response(StatusCode::SERVICE_UNAVAILABLE, format!("the datastore: {error}\n"))
            }
        }
    }
}

impl RequestHandler for ApiHandler {
    async fn answer(&self, http: http::Request<Body>, peer: &ConnectionPeer) -> Response<Body> {
        let began = Instant::now();
        let (parts, content) = http.into_parts();
        let target =
            request::parse_request(&parts.method, parts.uri.path(), parts.uri.query().unwrap_or_default());
        let (verb, resource) = match &target {
            Ok(RequestTarget::Objects(request)) => (request.verb.name(), request.served.kind.plural()),
            _ => (choose_method_name(&parts.method), ""),
        };
        let encoding =
            media::negotiate_format(read_header(&parts.headers, &ACCEPT)).map(|wanted| wanted.encoding);
        let answered = match target {
            Ok(RequestTarget::Objects(request)) => {
                self.answer_objects(*request, &parts.headers, content, peer).await
            }
            Ok(RequestTarget::Path(path)) => {
                self.answer_path(&parts.method, &path, &parts.headers, peer).await
            }
            Err(refusal) => self.refuse_authenticated(refusal, &parts.headers, peer).await,
        };
        let response =
            answered.unwrap_or_else(|refusal| encode_refusal(&refusal, encoding.unwrap_or_default()));
        self.metrics.answered(verb, resource, response.status().as_u16(), began.elapsed());
        response
    }

    fn count_closed(&self, connection: &'static str) {
        self.metrics.count_refused(connection);
    }
}

const KNOWN_PATHS: &[&str] = &[
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

fn describe_version() -> Value {
    json!({"major": "3", "minor": "", "gitVersion": format!("v{}", env!("CARGO_PKG_VERSION")), "platform": "linux"})
}

fn choose_method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET | Method::HEAD => "get",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "other",
    }
}

fn read_header<'a>(headers: &'a HeaderMap, name: &http::HeaderName) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn parse_include(request: &ObjectRequest) -> IncludeObject {
    match request.options.include_object.as_str() {
        "None" => IncludeObject::None,
        "Object" => IncludeObject::Object,
        _ => IncludeObject::Metadata,
    }
}

fn encode(code: StatusCode, value: &Value, encoding: ResponseEncoding) -> Response<Body> {
    match encoding {
        ResponseEncoding::Json => build_response(code, "application/json", Body::from(value.to_string())),
        ResponseEncoding::Yaml => build_response(code, "application/yaml", Body::from(codec::to_yaml(value))),
    }
}

pub fn encode_refusal(refusal: &StatusError, encoding: ResponseEncoding) -> Response<Body> {
    let code = StatusCode::from_u16(refusal.code()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = encode(code, &refusal.to_status(), encoding);
    if let Some(seconds) = refusal.retry_after() {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Returns a schema document, or 304 if the client has this version.
fn answer_document(document: &openapi::OpenApiDocument, headers: &HeaderMap) -> Response<Body> {
    let tag = format!("\"{}\"", document.hash);
    let mut response = if read_header(headers, &IF_NONE_MATCH).split(',').any(|known| known.trim() == tag) {
        build_response(StatusCode::NOT_MODIFIED, "application/json", Body::empty())
    } else {
        build_response(StatusCode::OK, "application/json", Body::from(document.text.clone()))
    };
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(ETAG, tag);
    }
    response
}

fn encode_response(request: &ObjectRequest, answer: VerbResponse, wanted: ResponseFormat) -> Response<Body> {
    match answer {
        VerbResponse::Done(status) => encode(StatusCode::OK, &status, wanted.encoding),
        VerbResponse::Object { object, code, warnings } => {
            let code = StatusCode::from_u16(code).unwrap_or(StatusCode::OK);
            let shown = match wanted.form {
                ResponseForm::Whole | ResponseForm::Aggregated => object,
                ResponseForm::Metadata => table::build_partial_metadata(&object),
                ResponseForm::Table => {
                    let version = object.pointer("/metadata/resourceVersion").cloned().unwrap_or_default();
                    let now = jiff::Timestamp::now().as_second();
                    let rows = vec![table::build_row(request.served, &object, parse_include(request), now)];
                    table::build_table(
                        table::build_column_definitions(request.served),
                        rows,
                        json!({ "resourceVersion": version }),
                    )
                }
            };
            let mut response = encode(code, &shown, wanted.encoding);
            for warning in warnings.iter().take(MAX_RESPONSE_WARNINGS) {
                let text = format!("299 - \"{}\"", warning.replace('\\', "\\\\").replace('"', "\\\""));
                if let Ok(value) = HeaderValue::from_str(&text) {
                    response.headers_mut().append(WARNING, value);
                }
            }
            response
        }
        VerbResponse::List(listed) => encode_list(request, &listed, wanted),
    }
}

fn encode_list(request: &ObjectRequest, listed: &ObjectList, wanted: ResponseFormat) -> Response<Body> {
    let mut metadata = json!({"resourceVersion": listed.revision});
    if !listed.continuation.is_empty() {
        metadata["continue"] = listed.continuation.as_str().into();
    }
    match wanted.form {
        ResponseForm::Table => {
            let now = jiff::Timestamp::now().as_second();
            let rows = listed.items.iter();
            let rows = rows
                .map(|object| table::build_row(request.served, &object.value(), parse_include(request), now));
            let table =
                table::build_table(table::build_column_definitions(request.served), rows.collect(), metadata);
            encode(StatusCode::OK, &table, wanted.encoding)
        }
        ResponseForm::Metadata => {
            let items: Vec<Value> =
                listed.items.iter().map(|object| table::build_partial_metadata(&object.value())).collect();
            let list = json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata, "items": items});
            encode(StatusCode::OK, &list, wanted.encoding)
        }
        ResponseForm::Whole | ResponseForm::Aggregated => {
            let text = join_objects(request, listed, &metadata);
            match wanted.encoding {
                ResponseEncoding::Json => {
                    build_response(StatusCode::OK, "application/json", Body::from(text))
                }
                ResponseEncoding::Yaml => {
                    let value: Value = serde_json::from_slice(&text).unwrap_or_default();
                    encode(StatusCode::OK, &value, ResponseEncoding::Yaml)
                }
            }
        }
    }
}

/// Concatenates the JSON texts of the objects.
fn join_objects(request: &ObjectRequest, listed: &ObjectList, metadata: &Value) -> Bytes {
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
