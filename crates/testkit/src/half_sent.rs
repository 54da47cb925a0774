//! A gRPC request body that is never completed.

use bytes::Bytes;
use http_body::{Body, Frame};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Body of a gRPC request that announces a message of `length` bytes, sends the given part of it and then stays
/// pending.
pub struct StalledRequestBody(std::vec::IntoIter<Bytes>);

impl StalledRequestBody {
    pub fn new(length: u32, sent: Bytes) -> StalledRequestBody {
        let header = [&[0][..], &length.to_be_bytes()].concat();
        StalledRequestBody(vec![header.into(), sent].into_iter())
    }
}

impl Body for StalledRequestBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.0.next() {
            Some(piece) => Poll::Ready(Some(Ok(Frame::data(piece)))),
            None => Poll::Pending,
        }
    }
}
