//! Checks that any unexpected peer on the control socket yields an error that names the problem.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use tortie_bgp::BgpFamily;
use tortie_bgp::bird::{BirdControl, ControlError};

/// Returns the error for a server that sends these bytes on every connection and closes it.
async fn error_for(answer: &'static [u8]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ctl");
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.write_all(answer);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let error = BirdControl::new(path).status(1).await.unwrap_err().to_string();
    server.join().unwrap();
    error
}

#[tokio::test]
async fn nonsense_is_named() {
    for (answer, part) in [
        (&b""[..], "ends too early"),
        (b"0001 BIRD 2.0.12 ready.\n", "ends too early"),
        (b"0001 BIRD v0.3.3+birdv1.6.8 ready.\n", "is not BIRD 2"),
        (b"0001 BIRD 1.6.8 ready.\n", "is not BIRD 2"),
        (b"HTTP/1.1 400 Bad Request\n", "does not begin with a number"),
        (b"\xff\xfe\x00\n", "does not begin with a number"),
        (b"0001 BIRD 2.0.12 ready.\n8003 Nope\n", "BIRD refuses: Nope"),
        (b"0001 BIRD 2.0.12 ready.\n1000-BIRD\n0013 up\n", "does not say its router ID"),
    ] {
        let error = error_for(answer).await;
        assert!(error.contains(part), "{error}");
    }
}

#[tokio::test]
async fn an_absent_bird_is_distinguished_from_a_refusal() {
    let dir = tempfile::tempdir().unwrap();
    let control = BirdControl::new(dir.path().join("ctl"));
    let error = control.routes(BgpFamily::V4).await.unwrap_err();
    assert!(matches!(error, ControlError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("ctl"), "{error}");
    // The end of the name would be ambiguous.
    let error = control.configure(Path::new("/tmp/a\"b")).await.unwrap_err();
    assert!(matches!(error, ControlError::Refused(_)), "{error}");
}

/// A server that accepts and never replies must not block the node.
#[tokio::test]
async fn silence_ends() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ctl");
    let _listener = UnixListener::bind(&path).unwrap();
    let error = BirdControl::new(path).started().await.unwrap_err();
    assert!(matches!(error, ControlError::Unreachable { .. }), "{error}");
}
