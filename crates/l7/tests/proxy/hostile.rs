//! Clients that do not follow the protocol must not stop the server or other clients.

use crate::fixture::{ServerFixture, connect};
use bytes::Bytes;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;
use tortie_l7::TestRequest;
use tortie_l7::proto::v3::authorization_client::AuthorizationClient;
use tortie_l7::proto::v3::{CheckResponse, HeaderValue};
use tortie_testkit::{CONDITION_TIMEOUT, StalledRequestBody, eventually_async};
use tower::{Service, ServiceExt};

const CHECK_PATH: &str = "/envoy.service.auth.v3.Authorization/Check";
/// The code of a server without policy. These tests need no verdict.
const NOT_SYNCED: i32 = 13;
const STREAMS: usize = 10_000;
const MAX_ATTEMPTS: usize = 10;
const STALLED_STREAMS: usize = 2_000;
const STREAMS_PER_CONNECTION: usize = 200;

fn request() -> TestRequest {
    TestRequest {
        principal: String::new(),
        source: "10.65.0.2:40000".parse().unwrap(),
        destination: "10.65.0.1:80".parse().unwrap(),
        http: Some(("GET".to_owned(), "/".to_owned())),
    }
}

/// Sends a message of another type in the place of a request.
async fn send_garbage(channel: Channel, garbage: &str) -> Result<CheckResponse, Status> {
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.unwrap();
    let codec = ProstCodec::<HeaderValue, CheckResponse>::default();
    let message = HeaderValue { key: garbage.to_owned(), value: "x".to_owned() };
    let response = client.unary(Request::new(message), CHECK_PATH.parse().unwrap(), codec).await?;
    Ok(response.into_inner())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_messages_are_rejected() {
    let fixture = ServerFixture::start(|_| {}).await;
    let channel = connect(&fixture.socket).await;
    for garbage in ["x", "\u{1}\u{2}\u{3}", "\n\u{7f}", "\u{12}\u{12}\u{12}"] {
        assert!(send_garbage(channel.clone(), garbage).await.is_err(), "{garbage:?}");
    }
    // The connection is still usable.
    assert_eq!(send_garbage(channel, "").await.unwrap().status.unwrap().code, NOT_SYNCED);
    assert_eq!(fixture.check(&request()).await, NOT_SYNCED);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_messages_and_headers_are_rejected() {
    let fixture = ServerFixture::start(|_| {}).await;
    let mut client = fixture.client().await;
    let mut large = request();
    large.http = Some(("GET".to_owned(), format!("/{}", "a".repeat(60 << 10))));
    assert!(client.check(large.encode()).await.is_ok(), "below the limit");
    large.http = Some(("GET".to_owned(), format!("/{}", "a".repeat(70 << 10))));
    let refused = client.check(large.encode()).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
    for size in [20 << 10, 200 << 10] {
        let mut request = Request::new(request().encode());
        let value = MetadataValue::try_from("h".repeat(size)).unwrap();
        request.metadata_mut().insert("x-large", value);
        assert!(fixture.client().await.check(request).await.is_err(), "{size} bytes of headers");
    }
    assert_eq!(fixture.check(&request()).await, NOT_SYNCED);
}

/// Begins a request that is never completed, and waits for its end.
async fn stall(mut channel: Channel) -> Option<Code> {
    let body = StalledRequestBody::new(60 << 10, Bytes::from_static(b"\n"));
    let request = http::Request::post(format!("http://localhost{CHECK_PATH}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Body::new(body))
        .unwrap();
    let response = channel.ready().await.ok()?.call(request).await.ok()?;
    Some(Status::from_header_map(response.headers())?.code())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn incomplete_requests_end_and_delay_nobody() {
    let fixture = ServerFixture::start(|_| {}).await;
    let mut stalled = JoinSet::new();
    for _ in 0..STALLED_STREAMS / STREAMS_PER_CONNECTION {
        let channel = connect(&fixture.socket).await;
        for _ in 0..STREAMS_PER_CONNECTION {
            stalled.spawn(stall(channel.clone()));
        }
    }
    for _ in 0..20 {
        assert_eq!(fixture.check(&request()).await, NOT_SYNCED);
    }
    let ended = async {
        while let Some(code) = stalled.join_next().await {
            assert_ne!(code.unwrap(), Some(Code::Ok));
        }
    };
    tokio::time::timeout(CONDITION_TIMEOUT, ended).await.unwrap();
    // 2,000 announced messages of 60 KiB exceed the memory of incomplete requests.
    assert!(fixture.metrics.refused_requests.get() > 0);
    assert_eq!(fixture.check(&request()).await, NOT_SYNCED);
}

/// Sends a request until it is answered. On a busy machine the server may end one that exceeds its time limit.
async fn check_until_answered(mut client: AuthorizationClient<Channel>) -> CheckResponse {
    for _ in 0..MAX_ATTEMPTS {
        match client.check(request().encode()).await {
            Err(status) if [Code::Cancelled, Code::DeadlineExceeded].contains(&status.code()) => {}
            response => return response.unwrap().into_inner(),
        }
    }
    panic!("no response to {MAX_ATTEMPTS} attempts");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_streams_are_answered() {
    let fixture = ServerFixture::start(|_| {}).await;
    let mut clients = JoinSet::new();
    for _ in 0..4 {
        let client = fixture.client().await;
        for _ in 0..STREAMS / 4 {
            clients.spawn(check_until_answered(client.clone()));
        }
    }
    let mut answered = 0;
    while let Some(response) = clients.join_next().await {
        assert_eq!(response.unwrap().status.unwrap().code, NOT_SYNCED);
        answered += 1;
    }
    assert_eq!(answered, STREAMS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_are_closed() {
    let fixture = ServerFixture::start(|options| options.max_connections = 4).await;
    let mut silent = Vec::new();
    for _ in 0..4 {
        silent.push(UnixStream::connect(&fixture.socket).await.unwrap());
    }
    eventually_async("the connections are open", async || fixture.metrics.connections.get() == 4).await;
    let mut refused = UnixStream::connect(&fixture.socket).await.unwrap();
    let mut byte = [0];
    let ended = tokio::time::timeout(CONDITION_TIMEOUT, refused.read(&mut byte)).await.unwrap();
    assert_eq!(ended.unwrap_or_default(), 0, "a connection beyond the limit is closed");
    eventually_async("a refusal is counted", async || fixture.metrics.refused_connections.get() > 0).await;
    eventually_async("silent connections are closed", async || fixture.metrics.connections.get() == 0).await;
    assert_eq!(fixture.check(&request()).await, NOT_SYNCED);
    drop(silent);
}

/// Returns the beginning of a connection with one request, without its message: preface, SETTINGS and HEADERS.
fn begin_check(authority: &[u8], headers: &[(&str, &str)]) -> Vec<u8> {
    let mut block = vec![0x83, 0x86, 0x41];
    let mut push = |prefix: &[u8], text: &[u8]| {
        block.extend_from_slice(prefix);
        block.push(u8::try_from(text.len()).unwrap());
        block.extend_from_slice(text);
    };
    push(&[], authority);
    push(&[0x44], CHECK_PATH.as_bytes());
    push(&[0x5f], b"application/grpc");
    for (name, value) in headers {
        push(&[0], name.as_bytes());
        push(&[], value.as_bytes());
    }
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend_from_slice(&[0, 0, 0, 4, 0, 0, 0, 0, 0]);
    bytes.extend_from_slice(&[0, 0, u8::try_from(block.len()).unwrap(), 1, 4, 0, 0, 0, 1]);
    bytes.extend_from_slice(&block);
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn incomplete_requests_are_answered_before_their_timeout() {
    let fixture = ServerFixture::start(|_| {}).await;
    let mut stream = UnixStream::connect(&fixture.socket).await.unwrap();
    // The message announces 60 bytes and contains one. Envoy's default timeout is 200 ms.
    let mut bytes = begin_check(b"localhost", &[("grpc-timeout", "200m")]);
    bytes.extend_from_slice(&[0, 0, 6, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 60, b'x']);
    tokio::io::AsyncWriteExt::write_all(&mut stream, &bytes).await.unwrap();
    // The time limit that the server has for clients without a timeout does not count here.
    let expired = async || fixture.metrics.expired_requests.get() == 1;
    eventually_async("the request is answered at its deadline", expired).await;
    assert_eq!(fixture.metrics.refused_requests.get(), 0);
    assert_eq!(fixture.check(&request()).await, NOT_SYNCED);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_authorities_are_accepted() {
    let fixture = ServerFixture::start(|_| {}).await;
    let mut stream = UnixStream::connect(&fixture.socket).await.unwrap();
    // Go clients send the path of the socket as the authority.
    let mut bytes = begin_check(b"%2Fvar%2Frun%2Fdikastes.sock", &[]);
    // An empty message with END_STREAM.
    bytes.extend_from_slice(&[0, 0, 5, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0]);
    tokio::io::AsyncWriteExt::write_all(&mut stream, &bytes).await.unwrap();
    let mut received = Vec::new();
    // The response is a HEADERS frame on stream 1; a rejected request would be RST_STREAM.
    let frames = async {
        while !received.windows(9).any(|frame| frame[3] == 1 && frame[5..] == [0, 0, 0, 1]) {
            assert!(stream.read_buf(&mut received).await.unwrap() > 0, "closed: {received:?}");
        }
    };
    tokio::time::timeout(CONDITION_TIMEOUT, frames).await.unwrap();
}
