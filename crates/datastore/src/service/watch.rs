//! The watch service. It is not generated because its responses use a custom encoding in which watchers share the
//! bytes of an event.

use super::{MAX_MESSAGE_BYTES, StoreService};
use crate::auth::KeyAccess;
use crate::key_span::KeySpan;
use crate::watch::{WatchAccess, WatchBody, serve};
use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::codec::Codec;
use tonic::codegen::{BoxFuture, http};
use tonic::metadata::{GRPC_CONTENT_TYPE, MetadataMap};
use tonic::server::NamedService;
use tonic::{Extensions, Status, Streaming};
use tonic_prost::ProstCodec;
use tortie_etcd_proto::etcdserverpb::{WatchRequest, WatchResponse};
use tower::Service as TowerService;

#[derive(Clone)]
pub struct WatchServer {
    service: Arc<StoreService>,
}

impl WatchServer {
    pub fn new(service: Arc<StoreService>) -> WatchServer {
        WatchServer { service }
    }
}

/// The client of a stream, identified again for each check: a stream may outlive users and their permissions.
struct StreamAccess {
    service: Arc<StoreService>,
    metadata: MetadataMap,
    extensions: Extensions,
}

impl WatchAccess for StreamAccess {
    fn version(&self) -> Option<u64> {
        let caller = self.service.identify(&self.metadata, &self.extensions).ok()?;
        Some(caller.auth_revision())
    }

    fn may_watch(&self, span: &KeySpan) -> bool {
        let caller = self.service.identify(&self.metadata, &self.extensions);
        caller.and_then(|caller| caller.check(KeyAccess::Read, span)).is_ok()
    }
}

impl NamedService for WatchServer {
    const NAME: &'static str = "etcdserverpb.Watch";
}

impl TowerService<http::Request<Body>> for WatchServer {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() != "/etcdserverpb.Watch/Watch" {
            return Box::pin(ready(Ok(Status::unimplemented("").into_http())));
        }
        let service = &self.service;
        let metadata = MetadataMap::from_headers(request.headers().clone());
        if let Err(refusal) = service.identify(&metadata, request.extensions()) {
            return Box::pin(ready(Ok(Status::from(refusal).into_http())));
        }
        let extensions = request.extensions().clone();
        let access = StreamAccess { service: service.clone(), metadata, extensions };
        let decoder = ProstCodec::<WatchResponse, WatchRequest>::default().decoder();
        let inbound = Streaming::new_request(decoder, request.into_body(), None, Some(MAX_MESSAGE_BYTES));
        let frames = serve(service.hub.clone(), inbound, access, service.stop.clone());
        let mut response = http::Response::new(Body::new(WatchBody::new(frames, service.identity)));
        response.headers_mut().insert(http::header::CONTENT_TYPE, GRPC_CONTENT_TYPE);
        Box::pin(ready(Ok(response)))
    }
}
