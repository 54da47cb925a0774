//! Accepts clients whose `:authority` header is not a valid authority.
//!
//! etcdctl and other Go clients send the endpoint as it was configured: `http://127.0.0.1:2379`, or the path of a
//! Unix socket. Envoy sends the name of a cluster. Go servers ignore it and so do we, but the HTTP/2 library below us resets such a request before it
//! reaches the service. Literal `:authority` values are therefore replaced by a short valid one while reading. HPACK
//! needs no decoding for that: only the boundaries between header fields have to be found. The replacement is never
//! longer than the original, so that an entry in the dynamic header table of the connection lives at least as long as
//! the client assumes.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

const PREFACE_BYTES: usize = 24;
const FRAME_HEADER_BYTES: usize = 9;
const HEADERS: u8 = 1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// Maximum frame size that a client may send unless the server raises it, which it does not.
const MAX_FRAME_BYTES: usize = 16 * 1024;
/// Index of `:authority` in the static table of HPACK.
const AUTHORITY_INDEX: usize = 1;

/// A connection whose requests are rewritten while they are read.
pub struct AuthorityRewriter<T> {
    io: T,
    rewriter: FrameRewriter,
}

impl<T> AuthorityRewriter<T> {
    pub fn new(io: T) -> AuthorityRewriter<T> {
        AuthorityRewriter { io, rewriter: FrameRewriter { pass: PREFACE_BYTES, ..FrameRewriter::default() } }
    }
}

/// Follows the frames of a connection.
#[derive(Default)]
struct FrameRewriter {
    /// Bytes that have been read but not yet parsed.
    raw: BytesMut,
    ready: BytesMut,
    /// Number of bytes to pass through unchanged.
    pass: usize,
}

/// Returns the output of the rewriter for a connection that arrives in pieces. Used by the fuzz target.
pub fn rewritten<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut rewriter = FrameRewriter { pass: PREFACE_BYTES, ..FrameRewriter::default() };
    pieces.for_each(|piece| rewriter.take(piece));
    rewriter.ready.to_vec()
}

impl FrameRewriter {
    fn take(&mut self, bytes: &[u8]) {
        self.raw.extend_from_slice(bytes);
        loop {
            let through = self.pass.min(self.raw.len());
            if through > 0 {
                self.ready.unsplit(self.raw.split_to(through));
                self.pass -= through;
            }
            let Some(header) = self.raw.first_chunk::<FRAME_HEADER_BYTES>() else { break };
            let (length, rewritable) = understand(header);
            if !rewritable {
                self.pass = FRAME_HEADER_BYTES + length;
                continue;
            }
            let [.., flags, a, b, c, d] = *header;
            let stream = [a, b, c, d];
            if self.raw.len() < FRAME_HEADER_BYTES + length {
                break;
            }
            let frame = self.raw.split_to(FRAME_HEADER_BYTES + length);
            self.rewrite(flags, stream, &frame[FRAME_HEADER_BYTES..]);
        }
        // Idle connections hold no buffers.
        if self.raw.is_empty() {
            self.raw = BytesMut::new();
        }
    }

    /// Checks whether the bytes need no rewriting, which holds for all of them after the first request of a client.
    /// If so, returns how many of the following bytes pass through unchanged.
    fn untouched(&self, mut bytes: &[u8]) -> Option<usize> {
        if !self.raw.is_empty() {
            return None;
        }
        let mut pass = self.pass;
        loop {
            let through = pass.min(bytes.len());
            (bytes, pass) = (&bytes[through..], pass - through);
            if bytes.is_empty() {
                return Some(pass);
            }
            let header = bytes.first_chunk::<FRAME_HEADER_BYTES>()?;
            let (length, rewritable) = understand(header);
            if !rewritable {
                pass = FRAME_HEADER_BYTES + length;
                continue;
            }
            let payload = bytes.get(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + length)?;
            if spells_authority(split_at_header_block(header[4], payload).1) {
                return None;
            }
            bytes = &bytes[FRAME_HEADER_BYTES + length..];
        }
    }

    fn rewrite(&mut self, flags: u8, stream: [u8; 4], payload: &[u8]) {
        let (before, block) = split_at_header_block(flags, payload);
        let block = replace_authority(block);
        let length = (before.len() + block.len()) as u32;
        self.ready.put_slice(&length.to_be_bytes()[1..]);
        self.ready.put_slice(&[HEADERS, flags]);
        self.ready.put_slice(&stream);
        self.ready.put_slice(before);
        self.ready.put_slice(&block);
    }
}

/// Returns the length of a frame, and whether it contains a header block that can be rewritten.
fn understand(header: &[u8; FRAME_HEADER_BYTES]) -> (usize, bool) {
    let [a, b, c, kind, flags, ..] = *header;
    let length = u32::from_be_bytes([0, a, b, c]) as usize;
    let whole = kind == HEADERS && flags & END_HEADERS != 0 && flags & PADDED == 0;
    (length, whole && length <= MAX_FRAME_BYTES)
}

/// Splits the payload of a HEADERS frame into the part before the header block and the block.
fn split_at_header_block(flags: u8, payload: &[u8]) -> (&[u8], &[u8]) {
    let start = if flags & PRIORITY != 0 { 5.min(payload.len()) } else { 0 };
    payload.split_at(start)
}

/// Returns the header block with every literal `:authority` value replaced. Parts that cannot be parsed are left
/// unchanged; the HTTP/2 library reports the error.
fn replace_authority(block: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(block.len());
    let mut rest = block;
    while let Some(HeaderField { bytes, authority_at }) = split_next_field(&mut rest) {
        match authority_at {
            Some(value_at) => {
                out.put_slice(&bytes[..value_at]);
                out.put_slice(&[1, b'-']);
            }
            None => out.put_slice(bytes),
        }
    }
    out.put_slice(rest);
    out.freeze()
}

fn spells_authority(mut block: &[u8]) -> bool {
    std::iter::from_fn(|| split_next_field(&mut block)).any(|field| field.authority_at.is_some())
}

/// One field of a header block.
struct HeaderField<'a> {
    bytes: &'a [u8],
    /// Offset of the value, if this is a literal, non-empty `:authority`.
    authority_at: Option<usize>,
}

/// Splits off the next field. Consumes nothing if no field can be parsed.
fn split_next_field<'a>(rest: &mut &'a [u8]) -> Option<HeaderField<'a>> {
    let start = *rest;
    let mut ahead = start;
    let (prefix, literal) = match *start.first()? {
        0x80.. => (7, false),
        0x40..0x80 => (6, true),
        0x20..0x40 => (5, false),
        _ => (4, true),
    };
    let index = decode_integer(&mut ahead, prefix)?;
    let mut authority_at = None;
    if literal {
        if index == 0 {
            skip_string(&mut ahead)?;
        }
        let value_at = start.len() - ahead.len();
        let length = skip_string(&mut ahead)?;
        authority_at = (index == AUTHORITY_INDEX && length > 0).then_some(value_at);
    }
    *rest = ahead;
    Some(HeaderField { bytes: &start[..start.len() - ahead.len()], authority_at })
}

/// Parses an HPACK integer with a prefix of this many bits.
fn decode_integer(bytes: &mut &[u8], prefix: u32) -> Option<usize> {
    let mask = (1usize << prefix) - 1;
    let mut value = usize::from(*bytes.first()?) & mask;
    bytes.advance(1);
    if value < mask {
        return Some(value);
    }
    for shift in [0, 7, 14, 21] {
        let byte = *bytes.first()?;
        bytes.advance(1);
        value += usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Skips a string and returns its encoded length.
fn skip_string(bytes: &mut &[u8]) -> Option<usize> {
    let length = decode_integer(bytes, 7)?;
    if length > bytes.len() {
        return None;
    }
    bytes.advance(length);
    Some(length)
}

impl<T: AsyncRead + Unpin> AsyncRead for AuthorityRewriter<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let AuthorityRewriter { io, rewriter } = self.get_mut();
        if out.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        while rewriter.ready.is_empty() {
            let before = out.filled().len();
            ready!(Pin::new(&mut *io).poll_read(context, out))?;
            let read = &out.filled()[before..];
            if read.is_empty() {
                return Poll::Ready(Ok(()));
            }
            if let Some(pass) = rewriter.untouched(read) {
                rewriter.pass = pass;
                return Poll::Ready(Ok(()));
            }
            rewriter.take(read);
            out.set_filled(before);
        }
        let length = rewriter.ready.len().min(out.remaining());
        out.put_slice(&rewriter.ready.split_to(length));
        if rewriter.ready.is_empty() {
            rewriter.ready = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for AuthorityRewriter<T> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

impl<T: Connected> Connected for AuthorityRewriter<T> {
    type ConnectInfo = T::ConnectInfo;

    fn connect_info(&self) -> T::ConnectInfo {
        self.io.connect_info()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// POST, an authority, a field with a literal name, then END_HEADERS and END_STREAM.
    fn request(authority: &[u8]) -> Vec<u8> {
        let mut block = vec![0x83, 0x41, authority.len() as u8];
        block.extend_from_slice(authority);
        block.extend_from_slice(b"\x40\x02te\x08trailers");
        frame(HEADERS, 0x5, &block)
    }

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        frame.extend_from_slice(&[kind, flags, 0, 0, 0, 1]);
        frame.extend_from_slice(payload);
        frame
    }

    fn through(chunks: &[&[u8]]) -> Vec<u8> {
        let mut rewriter = FrameRewriter { pass: PREFACE_BYTES, ..FrameRewriter::default() };
        chunks.iter().for_each(|chunk| rewriter.take(chunk));
        rewriter.ready.to_vec()
    }

    #[test]
    fn an_authority_is_replaced_and_all_else_stays() {
        let data = frame(0, 0, b"\x41\x03abc");
        let sent = [
            vec![b'P'; PREFACE_BYTES],
            request(b"http://127.0.0.1:2379"),
            data.clone(),
            request(b"/run/x.sock"),
        ]
        .concat();
        let expected = [vec![b'P'; PREFACE_BYTES], request(b"-"), data, request(b"-")].concat();
        assert_eq!(through(&[&sent]), expected);
        let bytes: Vec<&[u8]> = sent.chunks(1).collect();
        assert_eq!(through(&bytes), expected);
    }

    proptest! {
        #[test]
        fn the_result_does_not_depend_on_pieces(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..200) {
            let cut = cut.min(bytes.len());
            prop_assert_eq!(through(&[&bytes]), through(&[&bytes[..cut], &bytes[cut..]]));
        }

        #[test]
        fn the_fast_path_agrees_with_rewriting(
            authority in "[a-z]{0,3}", data in proptest::collection::vec(any::<u8>(), 0..50), cut in 0usize..100)
        {
            let indexed = frame(HEADERS, 0x5, b"\x83\xbe");
            let sent =
                [vec![b'P'; PREFACE_BYTES], indexed.clone(), frame(0, 0, &data), request(authority.as_bytes()), indexed].concat();
            let (first, second) = sent.split_at(cut.min(sent.len()));
            let mut rewriter = FrameRewriter { pass: PREFACE_BYTES, ..FrameRewriter::default() };
            for piece in [first, second] {
                let mut other = FrameRewriter { pass: rewriter.pass, ..FrameRewriter::default() };
                let untouched = rewriter.untouched(piece);
                other.take(piece);
                if let Some(pass) = untouched {
                    prop_assert_eq!(&other.ready[..], piece);
                    prop_assert_eq!(other.pass, pass);
                    rewriter.pass = pass;
                } else {
                    rewriter.take(piece);
                }
            }
        }

        #[test]
        fn header_blocks_never_grow(block in proptest::collection::vec(any::<u8>(), 0..60)) {
            prop_assert!(replace_authority(&block).len() <= block.len());
        }
    }
}
