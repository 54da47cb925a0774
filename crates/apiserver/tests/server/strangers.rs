//! Requests that nobody should make: strangers who say that they are somebody, bodies without end, paths that lead nowhere.

use crate::world::{Storage, World};
use serde_json::Value;
use std::process::Command;

/// The code and the body of an answer that was asked for without Kubernetes in between.
fn direct(world: &World, words: &[&str], path: &str) -> (u16, String) {
    let mut command = Command::new("curl");
    command.args(["-sk", "--max-time", "60", "-w", "\n%{http_code}"]).args(words);
    let output = command.arg(format!("https://localhost:{}{path}", world.port())).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, code) = text.rsplit_once('\n').unwrap();
    (code.parse().unwrap(), body.to_owned())
}

#[test]
fn strangers_are_not_believed() {
    let world = World::with_rules();
    let tiers = "/apis/projectcalico.org/v3/tiers";
    let masters = ["-H", "X-Remote-User: admin", "-H", "X-Remote-Group: system:masters"];
    // Without a certificate of the proxy what is said about a user counts for nothing.
    for words in [&masters[..], &[]] {
        let (code, body) = direct(&world, words, tiers);
        let status: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((code, &status["reason"]), (403, &"Forbidden".into()), "{body}");
        assert!(status["message"].as_str().unwrap().contains("system:anonymous"), "{body}");
    }
    let (code, _) = direct(&world, &["-H", "Authorization: Bearer nobodys"], tiers);
    assert_eq!(code, 401);
    let (code, _) = direct(&world, &["-H", "Authorization: Bearer secret"], tiers);
    assert_eq!(code, 200, "a token that Kubernetes knows");
    // With a certificate of somebody else's authority there is no connection at all.
    let stranger = rcgen::generate_simple_self_signed(vec!["front-proxy".to_owned()]).unwrap();
    let (certificate, key) = (world.server.path("stranger.pem"), world.server.path("stranger.key"));
    std::fs::write(&certificate, stranger.cert.pem()).unwrap();
    std::fs::write(&key, stranger.signing_key.serialize_pem()).unwrap();
    let files = [certificate, key].map(|path| path.display().to_string());
    let (code, _) = direct(&world, &["--cert", &files[0], "--key", &files[1], masters[0], masters[1]], tiers);
    assert_eq!(code, 0);
    // The proxy itself is believed.
    let files = ["proxy.pem", "proxy.key"].map(|name| world.server.path(name).display().to_string());
    let proxy = ["--cert", files[0].as_str(), "--key", files[1].as_str()];
    let (code, body) = direct(&world, &[&proxy[..], &masters[..]].concat(), tiers);
    assert_eq!(code, 200, "{body}");
    let (code, _) = direct(&world, &[&proxy[..], &["-H", "X-Remote-User: jane"]].concat(), tiers);
    assert_eq!(code, 403);
    // The process lives, whoever asks.
    assert_eq!(direct(&world, &[], "/livez"), (200, "ok".to_owned()));
    assert_eq!(direct(&world, &[], "/metrics").0, 403);
    let (code, text) = direct(&world, &["-H", "Authorization: Bearer secret"], "/metrics");
    assert!(code == 200 && text.contains("apiserver_request_total"), "{text}");
}

#[test]
fn what_is_too_much_is_refused() {
    let world = World::new(Storage::Kubernetes);
    let token = ["-H", "Authorization: Bearer secret", "-H", "Content-Type: application/json"];
    let large = world.server.path("large");
    std::fs::write(&large, format!("{{\"kind\":\"Tier\",\"x\":\"{}\"}}", "x".repeat(4 << 20))).unwrap();
    let body = format!("@{}", large.display());
    let tiers = "/apis/projectcalico.org/v3/tiers";
    let post = ["--http1.1", "-X", "POST", "--data-binary", body.as_str()];
    let (code, text) = direct(&world, &[&token[..], &post[..]].concat(), tiers);
    let status: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &status["reason"]), (413, &"RequestEntityTooLarge".into()), "{text}");
    // Nested without end.
    std::fs::write(&large, "[".repeat(100_000)).unwrap();
    let (code, _) = direct(&world, &[&token[..], &post[..]].concat(), tiers);
    assert_eq!(code, 400);
    for (words, path, expected) in [
        (&["-X", "POST", "-d", "{", "-H", "Content-Type: application/json"][..], tiers, 400),
        (&["-X", "POST", "-d", "{}", "-H", "Content-Type: text/plain"], tiers, 415),
        (&["-H", "Accept: application/vnd.kubernetes.protobuf"], tiers, 406),
        (&[], "/apis/projectcalico.org/v3/tiers?labelSelector=%3D", 400),
        (&[], "/apis/projectcalico.org/v3/tiers?continue=nonsense&limit=1", 400),
        (&[], "/apis/projectcalico.org/v3/tiers?resourceVersion=abc", 400),
        (&[], "/apis/projectcalico.org/v3/nosuch", 404),
        // Answered before the body is read, which curl takes for an error over HTTP/2.
        (&["--http1.1", "-X", "PUT", "-d", "{}"], tiers, 405),
    ] {
        let (code, text) = direct(&world, &[&token[..2], words].concat(), path);
        assert_eq!(code, expected, "{words:?} {path}: {text}");
        let status: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(status["kind"], "Status", "{text}");
    }
}
