//! Post-processes every response: an oversized message is rejected with the error text of etcd's gRPC library, and a
//! large response is sent at the pace of the client.

use super::encoded_body::EncodedBody;
use super::paced_body::pace_response;
use crate::limits::BudgetShare;
use crate::range_encoder::EncodedRange;
use futures::TryFutureExt;
use futures::future::MapOk;
use std::convert::Infallible;
use std::task::{Context, Poll};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::server::NamedService;
use tower::Service as TowerService;

/// An encoded response that replaces an empty one.
#[derive(Clone)]
pub struct EncodedRangeResponse {
    pub message: EncodedRange,
    pub share: Option<BudgetShare>,
}

/// A service whose responses are post-processed.
#[derive(Clone)]
pub struct PostProcessed<S>(pub S);

impl<S: NamedService> NamedService for PostProcessed<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> TowerService<http::Request<Body>> for PostProcessed<S>
where
    S: TowerService<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = MapOk<S::Future, fn(http::Response<Body>) -> http::Response<Body>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        self.0.call(request).map_ok(post_process)
    }
}

fn post_process(mut response: http::Response<Body>) -> http::Response<Body> {
    if let Some(EncodedRangeResponse { message, share }) = response.extensions_mut().remove() {
        let body = Body::new(EncodedBody::new(message));
        return response.map(|_| match share {
            Some(share) => pace_response(body, share),
            None => body,
        });
    }
    if let Some(share) = response.extensions_mut().remove::<BudgetShare>() {
        return response.map(|body| pace_response(body, share));
    }
    // Only a response without a message has its status in the headers, so nearly every response returns here.
    if response.headers().get(Status::GRPC_STATUS).is_none() {
        return response;
    }
    let status = Status::from_header_map(response.headers());
    match status.as_ref().and_then(|status| parse_oversize(status.message())) {
        Some((found, limit)) => {
            let text = format!("grpc: received message larger than max ({found} vs. {limit})");
            Status::resource_exhausted(text).into_http()
        }
        None => response,
    }
}

/// Parses the two sizes from tonic's error about an oversized message.
fn parse_oversize(text: &str) -> Option<(u64, u64)> {
    let text = text.strip_prefix("Error, decoded message length too large: found ")?;
    let (found, rest) = text.split_once(" bytes, the limit is: ")?;
    Some((found.parse().ok()?, rest.strip_suffix(" bytes")?.parse().ok()?))
}
