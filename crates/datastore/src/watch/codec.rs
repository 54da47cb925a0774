//! Watch requests in, frames out: the only method whose responses are not made by prost.

use super::Frame;
use crate::directory::Identity;
use tonic::Status;
use tonic::codec::{Codec, EncodeBuf, Encoder};
use tonic_prost::{ProstCodec, ProstDecoder};
use tortie_etcd_proto::etcdserverpb::{WatchRequest, WatchResponse};

#[derive(Clone, Copy)]
pub struct WatchCodec {
    pub identity: Identity,
}

impl Codec for WatchCodec {
    type Encode = Frame;
    type Decode = WatchRequest;
    type Encoder = WatchCodec;
    type Decoder = ProstDecoder<WatchRequest>;

    fn encoder(&mut self) -> WatchCodec {
        *self
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<WatchResponse, WatchRequest>::default().decoder()
    }
}

impl Encoder for WatchCodec {
    type Item = Frame;
    type Error = Status;

    fn encode(&mut self, frame: Frame, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        frame.encode(self.identity, out);
        Ok(())
    }
}
