use super::*;

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
}

fn check(mode: AccessMode, method: Method, pairs: &[(&'static str, &str)]) -> Result<(), ApiError> {
    AccessControl::new(mode).check_origin(&method, &headers(pairs))
}

const SESSION: AccessMode = AccessMode::Session { port: 7070 };
const SOCKET: AccessMode = AccessMode::Connection { tls: false };
const TLS: AccessMode = AccessMode::Connection { tls: true };

#[test]
fn only_own_addresses_are_hosts() {
    for host in ["127.0.0.1:7070", "localhost:7070", "[::1]:7070"] {
        assert!(check(SESSION, Method::GET, &[("host", host)]).is_ok(), "{host}");
    }
    for host in [
        "127.0.0.1",
        "127.0.0.1:7071",
        "evil.example:7070",
        "10.0.0.1:7070",
        "localhost.evil:7070",
        "",
        "[::1]",
    ] {
        let error = check(SESSION, Method::GET, &[("host", host)]).unwrap_err();
        assert!(matches!(error, ApiError::Host { .. }), "{host}: {error}");
    }
    assert!(check(SESSION, Method::GET, &[]).is_err(), "no host");
    assert!(check(SOCKET, Method::GET, &[("host", "localhost:9000")]).is_ok(), "a forwarded port");
    assert!(check(SOCKET, Method::GET, &[("host", "localhost")]).is_ok());
    assert!(check(SOCKET, Method::GET, &[("host", "evil.example")]).is_err());
    assert!(check(TLS, Method::GET, &[("host", "console.example")]).is_ok());
}

#[test]
fn foreign_origins_are_refused() {
    let host = ("host", "localhost:7070");
    let own = ("origin", "http://localhost:7070");
    let header = (REQUEST_HEADER, "1");
    assert!(check(SESSION, Method::POST, &[host, own, header]).is_ok());
    assert!(matches!(check(SESSION, Method::POST, &[host, own]), Err(ApiError::NoRequestHeader)));
    for origin in ["http://evil.example", "https://localhost:7070", "http://localhost:7071", "null"] {
        let error = check(SESSION, Method::POST, &[host, ("origin", origin), header]).unwrap_err();
        assert!(matches!(error, ApiError::Origin { .. }), "{origin}: {error}");
    }
    let cross = ("sec-fetch-site", "cross-site");
    assert!(check(SESSION, Method::GET, &[host, cross]).is_err());
    assert!(check(SESSION, Method::GET, &[host, ("sec-fetch-site", "same-site")]).is_err(), "another port");
    let link = [host, cross, ("sec-fetch-mode", "navigate")];
    assert!(check(SESSION, Method::GET, &link).is_ok(), "a link on another page");
    assert!(check(SESSION, Method::POST, &link).is_err());
}

#[test]
fn only_the_cookie_of_a_session_counts() {
    let access = AccessControl::new(SESSION);
    let (token, now) = (access.sessions.lock().unwrap().issue_token(), Instant::now());
    let secret = access.sessions.lock().unwrap().sign_in(&token, now).unwrap();
    let is_open = |cookie: &str| access.is_signed_in(&headers(&[("cookie", cookie)]));
    assert!(is_open(&format!("a=b; tortie_console_7070={secret}")));
    assert!(
        !is_open(&format!("tortie_console_7071={secret}"))
            && !is_open("tortie_console_7070=x")
            && !is_open("")
    );
    assert!(!access.is_signed_in(&HeaderMap::new()));
    assert!(AccessControl::new(SOCKET).is_signed_in(&HeaderMap::new()), "the socket was checked");
}

#[test]
fn refused_requests_leave_the_rate_to_others() {
    let access = AccessControl::new(SESSION);
    let check = |path: &str, host: &str| {
        let request = axum::http::Request::builder().uri(path).header("host", host).body(Body::empty());
        access.check_request(&request.unwrap())
    };
    for _ in 0..10_000 {
        assert!(matches!(check("/", "evil.example:7070"), Err(ApiError::Host { .. })));
        assert!(matches!(check("/api/overview", "localhost:7070"), Err(ApiError::NotSignedIn)));
    }
    assert!(check("/", "localhost:7070").is_ok());
    let is_limited = |_| matches!(check("/", "localhost:7070"), Err(ApiError::TooManyRequests { .. }));
    assert!((0..10_000).any(is_limited));
}
