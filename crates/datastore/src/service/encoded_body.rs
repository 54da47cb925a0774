//! The body of a response that was encoded in advance.

use crate::range_encoder::EncodedRange;
use crate::rejection::success;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame};
use std::pin::Pin;
use std::task::{Context, Poll};
use tonic::Status;

pub struct EncodedBody {
    chunks: std::vec::IntoIter<Bytes>,
    has_ended: bool,
}

impl EncodedBody {
    pub fn new(message: EncodedRange) -> EncodedBody {
        EncodedBody { chunks: message.chunks.into_iter(), has_ended: false }
    }
}

impl HttpBody for EncodedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(chunk) = self.chunks.next() {
            return Poll::Ready(Some(Ok(Frame::data(chunk))));
        }
        let has_ended = std::mem::replace(&mut self.has_ended, true);
        Poll::Ready((!has_ended).then(|| Ok(Frame::trailers(success()))))
    }
}
