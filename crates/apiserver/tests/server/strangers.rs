//! Malicious and invalid requests: forged identities, endless bodies, unknown paths.

use crate::world::{ApiServerWorld, TestStorage};
use serde_json::{Value, json};
use std::process::Command;

/// Sends a request directly, not through kube-apiserver, and returns the status code and body.
fn direct(world: &ApiServerWorld, words: &[&str], path: &str) -> (u16, String) {
    let mut command = Command::new("curl");
    command.args(["-sk", "--max-time", "60", "-w", "\n%{http_code}"]).args(words);
    let output = command.arg(format!("https://localhost:{}{path}", world.port())).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, code) = text.rsplit_once('\n').unwrap();
    (code.parse().unwrap(), body.to_owned())
}

#[test]
fn strangers_are_not_believed() {
    let world = ApiServerWorld::with_rules();
    let tiers = "/apis/projectcalico.org/v3/tiers";
    let masters = ["-H", "X-Remote-User: admin", "-H", "X-Remote-Group: system:masters"];
    // Without the front proxy's certificate, identity headers are ignored.
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
    // A certificate of an unknown authority fails the handshake.
    let stranger = rcgen::generate_simple_self_signed(vec!["front-proxy".to_owned()]).unwrap();
    let (certificate, key) = (world.server.path("stranger.pem"), world.server.path("stranger.key"));
    std::fs::write(&certificate, stranger.cert.pem()).unwrap();
    std::fs::write(&key, stranger.signing_key.serialize_pem()).unwrap();
    let files = [certificate, key].map(|path| path.display().to_string());
    let (code, _) = direct(&world, &["--cert", &files[0], "--key", &files[1], masters[0], masters[1]], tiers);
    assert_eq!(code, 0);
    // The front proxy's identity headers are trusted.
    let files = ["proxy.pem", "proxy.key"].map(|name| world.server.path(name).display().to_string());
    let proxy = ["--cert", files[0].as_str(), "--key", files[1].as_str()];
    let (code, body) = direct(&world, &[&proxy[..], &masters[..]].concat(), tiers);
    assert_eq!(code, 200, "{body}");
    let (code, _) = direct(&world, &[&proxy[..], &["-H", "X-Remote-User: jane"]].concat(), tiers);
    assert_eq!(code, 403);
    // Liveness is reported to any client.
    assert_eq!(direct(&world, &[], "/livez"), (200, "ok".to_owned()));
    assert_eq!(direct(&world, &[], "/metrics").0, 403);
    let (code, text) = direct(&world, &["-H", "Authorization: Bearer secret"], "/metrics");
    assert!(code == 200 && text.contains("apiserver_request_total"), "{text}");
}

#[test]
fn what_is_too_much_is_refused() {
    let world = ApiServerWorld::new(TestStorage::Kubernetes);
    let token = ["-H", "Authorization: Bearer secret", "-H", "Content-Type: application/json"];
    let large = world.server.path("large");
    std::fs::write(&large, format!("{{\"kind\":\"Tier\",\"x\":\"{}\"}}", "x".repeat(4 << 20))).unwrap();
    let body = format!("@{}", large.display());
    let tiers = "/apis/projectcalico.org/v3/tiers";
    let post = ["-X", "POST", "--data-binary", body.as_str()];
    // The server reads the whole body before it responds; otherwise the client would see a closed connection instead
    // of the response.
    for version in ["--http1.1", "--http2"] {
        let (code, text) = direct(&world, &[&token[..], &post[..], &[version]].concat(), tiers);
        let status: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((code, &status["reason"]), (413, &"RequestEntityTooLarge".into()), "{version}: {text}");
    }
    // Deeply nested.
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
        // Answered before the body is read, which curl reports as an error over HTTP/2.
        (&["--http1.1", "-X", "PUT", "-d", "{}"], tiers, 405),
    ] {
        let (code, text) = direct(&world, &[&token[..2], words].concat(), path);
        assert_eq!(code, expected, "{words:?} {path}: {text}");
        let status: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(status["kind"], "Status", "{text}");
    }
    costly_patches_are_refused(&world);
    idle_connections_lock_nobody_out(&world);
}

/// Checks that costly patches are rejected, those with too many operations with kube-apiserver's status code.
fn costly_patches_are_refused(world: &ApiServerWorld) {
    let ours = "/apis/projectcalico.org/v3/globalnetworksets";
    let theirs = "/apis/crd.projectcalico.org/v1/globalnetworksets";
    let set = json!({"apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkSet",
        "metadata": {"name": "target", "annotations": {"text": "x".repeat(10_000)}}});
    world.server.create(ours, &set);
    let json_patch = "application/json-patch+json";
    let code = |base: &str, form: &str, patch: &Value| {
        let path = format!("{base}/target?dryRun=All");
        match world.server.send_as("secret", "PATCH", &path, form, Some(patch)) {
            Ok(_) => 200,
            Err(refusal) => {
                let code = refusal.split_once("dryRun=All: ").and_then(|(_, rest)| rest.get(..3));
                code.unwrap_or_else(|| panic!("{refusal}")).parse::<u16>().unwrap_or_default()
            }
        }
    };
    let test = json!({"op": "test", "path": "/metadata/name", "value": "target"});
    let text = "/metadata/annotations/text";
    let copy = |from: &str, path: &str| json!({"op": "copy", "from": from, "path": path});
    for (count, expected) in [(10_000, 200), (10_001, 413)] {
        let patch = Value::from(vec![test.clone(); count]);
        for base in [ours, theirs] {
            assert_eq!(code(base, json_patch, &patch), expected, "{count} operations {base}");
        }
    }
    for (count, expected) in [(310, 200), (330, 422)] {
        let patch = Value::from(vec![copy(text, "/metadata/annotations/copy"); count]);
        assert_eq!(code(ours, json_patch, &patch), expected, "{count} copies onto one path");
    }
    // Each copy contains the previous one and is nested inside it, as deep as the last path is long.
    let mut nested = vec![json!({"op": "add", "path": "/spec/a", "value": {}})];
    nested.extend((1..15).map(|power| copy("/spec", &format!("/spec{}", "/a".repeat(1 << power >> 1)))));
    assert_eq!(code(ours, json_patch, &nested.into()), 422, "nested copies");
    let deep = (0..60).fold(json!({}), |inner, _| json!({"a": inner}));
    assert_eq!(code(ours, "application/merge-patch+json", &json!({"spec": deep})), 422, "a deep merge patch");
    let config = json!({"apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkSet", "spec": deep});
    assert_eq!(code(ours, "application/apply-patch+yaml", &config), 400, "a deep configuration");
    assert_eq!(code(ours, "application/merge-patch+json", &json!({"spec": {"nets": ["10.0.0.0/8"]}})), 200);
}

/// Opens more connections than a source may have: the oldest idle ones are closed.
fn idle_connections_lock_nobody_out(world: &ApiServerWorld) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut held = Vec::new();
        for _ in 0..300 {
            held.push(tokio::net::TcpStream::connect(("127.0.0.1", world.port())).await.unwrap());
        }
        // Accepted after all of them.
        assert_eq!(direct(world, &[], "/livez"), (200, "ok".to_owned()));
        let (_, text) = direct(world, &["-H", "Authorization: Bearer secret"], "/metrics");
        let closed = text.lines().find_map(|line| {
            line.strip_prefix("tortie_apiserver_refused_total{what=\"idle_connection\"} ")?
                .parse::<usize>()
                .ok()
        });
        assert!(closed.is_some_and(|closed| closed > 0), "{text}");
        drop(held);
    });
}
