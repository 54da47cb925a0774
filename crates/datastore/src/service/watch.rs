//! The watch service. It is not generated because its responses have an encoding of their own, in which watchers
//! share the bytes of an event.

use super::{MAX_MESSAGE_BYTES, Service};
use crate::watch::{Frame, WatchCodec, serve};
use futures::Stream;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::codegen::{BoxFuture, http};
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::{Request, Response, Status, Streaming};
use tortie_etcd_proto::etcdserverpb::WatchRequest;
use tower::Service as TowerService;

#[derive(Clone)]
pub struct WatchServer {
    service: Arc<Service>,
}

impl WatchServer {
    pub fn new(service: Arc<Service>) -> WatchServer {
        WatchServer { service }
    }
}

impl NamedService for WatchServer {
    const NAME: &'static str = "etcdserverpb.Watch";
}

impl TowerService<http::Request<tonic::body::Body>> for WatchServer {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        if request.uri().path() != "/etcdserverpb.Watch/Watch" {
            return Box::pin(ready(Ok(Status::unimplemented("").into_http())));
        }
        let method = WatchMethod { service: self.service.clone() };
        Box::pin(async move {
            let codec = WatchCodec { identity: method.service.identity };
            let mut grpc = Grpc::new(codec).apply_max_message_size_config(Some(MAX_MESSAGE_BYTES), None);
            Ok(grpc.streaming(method, request).await)
        })
    }
}

struct WatchMethod {
    service: Arc<Service>,
}

impl StreamingService<WatchRequest> for WatchMethod {
    type Response = Frame;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<Frame, Status>> + Send>>;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<WatchRequest>>) -> Self::Future {
        let frames = serve(self.service.hub.clone(), request.into_inner(), self.service.stop.clone());
        ready(Ok(Response::new(Box::pin(frames))))
    }
}
