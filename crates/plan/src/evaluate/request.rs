//! Requests as a proxy reports them, and the identity of the client that sends them.
//!
//! A request is evaluated like the connection that carries it, with two more kinds of conditions: methods and paths, and
//! the authenticated identity of the other end.

use crate::policy::{HttpMatch, HttpPathMatch, PeerMatch, RuleAction};
use std::borrow::Cow;
use thiserror::Error;

/// The authenticated identity of one end of a request, for example the SPIFFE ID of a client certificate.
pub trait PeerIdentity {
    /// Returns whether the identity satisfies the selectors of a rule. `policy_namespace` is empty for rules of global
    /// policies and of profiles.
    fn matches(&self, peer: &PeerMatch, policy_namespace: &str) -> bool;
}

/// The properties of a request or a connection that a proxy knows in addition to its addresses and ports.
#[derive(Clone, Copy)]
pub struct RequestContext<'r> {
    pub traffic: ProxiedTraffic<'r>,
    /// Lets rules with HTTP conditions match connections without HTTP attributes, as Calico does.
    pub http_rules_match_connections: bool,
    /// `None` if the client is not authenticated: then only address sets restrict it.
    pub source: Option<&'r dyn PeerIdentity>,
    pub destination: Option<&'r dyn PeerIdentity>,
}

/// The traffic that a proxy asks about.
#[derive(Clone, Copy, Debug)]
pub enum ProxiedTraffic<'r> {
    Request(&'r HttpRequest<'r>),
    /// A connection without HTTP attributes.
    Connection,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRequest<'r> {
    pub method: &'r str,
    /// A path that has no normal form satisfies no rule that lists paths, unless the rule denies.
    pub path: Result<RequestPath<'r>, RequestPathError>,
}

impl<'r> HttpRequest<'r> {
    pub fn new(method: &'r str, path: &'r str) -> HttpRequest<'r> {
        HttpRequest { method, path: RequestPath::parse(path) }
    }

    /// Returns whether the request has one of the methods and one of the paths of a rule.
    pub(super) fn satisfies(&self, http: &HttpMatch, action: RuleAction) -> bool {
        let method = |wanted: &String| wanted == "*" || wanted == self.method;
        if !http.methods.is_empty() && !http.methods.iter().any(method) {
            return false;
        }
        if http.paths.is_empty() {
            return true;
        }
        match (&self.path, action) {
            (Ok(path), RuleAction::Deny) => path.readings().any(|reading| is_listed(reading, http)),
            (Ok(path), _) => path.readings().all(|reading| is_listed(reading, http)),
            (Err(_), action) => action == RuleAction::Deny,
        }
    }
}

/// The path of a request, as servers read it. Servers disagree about some paths, so a rule that allows must list all
/// readings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestPath<'r> {
    /// Without query, percent-decoded once, with `/` for `\`, and without parameters (`;...`), `.`, `..` and
    /// repeated slashes.
    normal: Cow<'r, str>,
    /// The same for a server to which `..`, `\` and an escaped `/` are text, if it differs: `/a/..%2fb` may reach the
    /// handler of `/a/:name`. An escaped slash is written `%2F`.
    literal: Option<String>,
}

/// The reason why a path has no normal form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RequestPathError {
    #[error("the path does not start with /")]
    NotAbsolute,
    /// Servers would interpret it differently.
    #[error(
        "the path is ambiguous: it is encoded twice, has an invalid escape, a control character or a fragment, or \
         leads above the root"
    )]
    Ambiguous,
}

impl<'r> RequestPath<'r> {
    pub fn parse(text: &'r str) -> Result<RequestPath<'r>, RequestPathError> {
        if !text.starts_with('/') {
            return Err(RequestPathError::NotAbsolute);
        }
        let text = text.split('?').next().unwrap_or_default();
        // No client sends a fragment. Some servers cut it off, others take it as text of the path.
        if text.bytes().any(|byte| byte == b'#' || byte.is_ascii_control()) {
            return Err(RequestPathError::Ambiguous);
        }
        if is_normal(text) {
            return Ok(RequestPath { normal: Cow::Borrowed(text), literal: None });
        }
        let decoded = decode(text)?;
        if is_encoded_again(&decoded) || decoded.contains('\0') {
            return Err(RequestPathError::Ambiguous);
        }
        let normal = resolve_segments(&decoded.replace('\\', "/"))?;
        let literal = Some(read_literally(text)?).filter(|literal| *literal != normal);
        Ok(RequestPath { normal: Cow::Owned(normal), literal })
    }

    /// Returns the normal form.
    pub fn as_str(&self) -> &str {
        &self.normal
    }

    /// Returns how servers read the path that split it before they decode it, unless that is the normal form.
    pub fn literal(&self) -> Option<&str> {
        self.literal.as_deref()
    }

    fn readings(&self) -> impl Iterator<Item = &str> {
        [&*self.normal].into_iter().chain(self.literal())
    }
}

/// Returns whether a rule lists a path.
fn is_listed(path: &str, http: &HttpMatch) -> bool {
    http.paths.iter().any(|wanted| match wanted {
        HttpPathMatch::Exact(exact) => path == exact,
        HttpPathMatch::Prefix(prefix) => {
            let prefix = prefix.trim_end_matches('/');
            path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        }
    })
}

/// Returns whether a path is certainly in normal form, so that it need not be copied.
fn is_normal(path: &str) -> bool {
    let mut previous = 0;
    path.bytes().all(|byte| {
        let after_slash = std::mem::replace(&mut previous, byte) == b'/';
        match byte {
            b'%' | b'\\' | b';' | 0 => false,
            b'/' | b'.' => !after_slash,
            _ => true,
        }
    })
}

/// Decodes percent escapes once.
fn decode(text: &str) -> Result<String, RequestPathError> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let digits = bytes.next().and_then(decode_hex_digit).zip(bytes.next().and_then(decode_hex_digit));
        let (high, low) = digits.ok_or(RequestPathError::Ambiguous)?;
        decoded.push(high << 4 | low);
    }
    String::from_utf8(decoded).map_err(|_| RequestPathError::Ambiguous)
}

fn decode_hex_digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

/// Returns whether a decoded path still contains an escape of `.`, `/`, `\`, `;`, `%` or NUL.
fn is_encoded_again(decoded: &str) -> bool {
    const ESCAPES: [&[u8; 2]; 6] = [b"2e", b"2f", b"5c", b"3b", b"25", b"00"];
    decoded.as_bytes().windows(3).any(|window| {
        window[0] == b'%' && ESCAPES.iter().any(|escape| window[1..].eq_ignore_ascii_case(*escape))
    })
}

/// Removes parameters, repeated slashes, `.` and `..`. A trailing slash is kept.
fn resolve_segments(path: &str) -> Result<String, RequestPathError> {
    let mut segments: Vec<&str> = Vec::new();
    let mut ends_with_slash = false;
    for segment in path.split('/') {
        let segment = segment.split(';').next().unwrap_or_default();
        ends_with_slash = matches!(segment, "" | "." | "..");
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop().ok_or(RequestPathError::Ambiguous)?;
            }
            segment => segments.push(segment),
        }
    }
    Ok(join_segments(&segments, ends_with_slash))
}

/// Returns a path as a server reads it that splits it before it decodes escapes and does not resolve `..`.
fn read_literally(text: &str) -> Result<String, RequestPathError> {
    let mut segments: Vec<String> = Vec::new();
    let mut ends_with_slash = false;
    for segment in text.split('/') {
        let decoded = decode(segment)?;
        let segment = decoded.split(';').next().unwrap_or_default();
        ends_with_slash = matches!(segment, "" | ".");
        if !ends_with_slash {
            segments.push(segment.replace('/', "%2F"));
        }
    }
    Ok(join_segments(&segments, ends_with_slash))
}

fn join_segments(segments: &[impl AsRef<str>], ends_with_slash: bool) -> String {
    let mut path: String = segments.iter().flat_map(|segment| ["/", segment.as_ref()]).collect();
    if ends_with_slash || segments.is_empty() {
        path.push('/');
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_one_normal_form() {
        let cases = [
            ("/", "/"),
            ("/a/b", "/a/b"),
            ("/a/b/", "/a/b/"),
            ("/a?x=/../b", "/a"),
            ("/a?b#c", "/a"),
            ("/a%23b", "/a#b"),
            ("/a%09b", "/a\tb"),
            ("//a///b", "/a/b"),
            ("/a/./b/.", "/a/b/"),
            ("/a/../b", "/b"),
            ("/a/b/..", "/a/"),
            ("/a/..", "/"),
            ("/%61", "/a"),
            ("/a/%2e%2E/b", "/b"),
            ("/a%2fb", "/a/b"),
            ("/a\\b", "/a/b"),
            ("/a%5Cb", "/a/b"),
            ("/a;x=1/b;y", "/a/b"),
            ("/a/..;x/b", "/b"),
            ("/a%3Bx", "/a"),
            ("/.hidden", "/.hidden"),
            ("/a.b/...", "/a.b/..."),
            ("/%C3%A9", "/é"),
            ("/a%20b", "/a b"),
            ("/100%25", "/100%"),
        ];
        for (text, normal) in cases {
            let path = RequestPath::parse(text);
            assert_eq!(path.as_ref().map(RequestPath::as_str), Ok(normal), "{text}");
        }
    }

    #[test]
    fn ambiguous_paths_have_no_normal_form() {
        let ambiguous = [
            "/%252e%252e/a",
            "/a%252Fb",
            "/a%255c",
            "/a%2500",
            "/%2525",
            "/a%00b",
            "/a%",
            "/a%2",
            "/a%zz",
            "/%ff",
            "/..",
            "/a/../../b",
            "/a/..;/..;/b",
            "/%2e%2e/",
            "/a%253b",
            // Some servers read `/allowed`, others resolve to `/denied`.
            "/allowed#/../denied",
            "/allowed#",
            "/#?",
            // Some parsers of URLs remove these characters, also between two dots.
            "/api/.\t./denied",
            "/api/.\n./denied",
            "/api/.\r./denied",
            "/a\0b",
            "/a\x7f",
        ];
        for text in ambiguous {
            assert_eq!(RequestPath::parse(text), Err(RequestPathError::Ambiguous), "{text}");
        }
        for text in ["", "a", "*", "http://host/a", "%2fa", "?/a"] {
            assert_eq!(RequestPath::parse(text), Err(RequestPathError::NotAbsolute), "{text}");
        }
    }

    #[test]
    fn a_normal_form_is_its_own() {
        for text in ["/", "/a/b", "/a b/", "/é", "/.a/..."] {
            let once = RequestPath::parse(text).map(|path| path.as_str().to_owned());
            assert_eq!(once.as_deref(), Ok(text));
        }
    }

    #[test]
    fn prefixes_end_at_segments() {
        for wanted in ["/api", "/api/"] {
            let listed = |path| is_listed(path, &paths(&[], &[wanted]));
            assert!(listed("/api") && listed("/api/x"), "{wanted}");
            assert!(!listed("/apix") && !listed("/a"), "{wanted}");
        }
        assert!(is_listed("/x", &paths(&[], &["/"])));
        assert!(is_listed("/a", &paths(&["/a"], &[])));
        assert!(!is_listed("/a/", &paths(&["/a"], &[])));
    }

    fn paths(exact: &[&str], prefixes: &[&str]) -> HttpMatch {
        let exact = exact.iter().map(|path| HttpPathMatch::Exact((*path).to_owned()));
        let prefixes = prefixes.iter().map(|path| HttpPathMatch::Prefix((*path).to_owned()));
        let paths = exact.chain(prefixes).collect();
        HttpMatch { methods: Vec::new(), paths, matches_without_proxy: false }
    }

    fn matches(action: RuleAction, http: &HttpMatch, path: &str) -> bool {
        HttpRequest::new("GET", path).satisfies(http, action)
    }

    #[test]
    fn rules_allow_only_what_all_servers_read() {
        let open = paths(&["/allowed"], &["/api"]);
        // Every reading is listed.
        for path in [
            "/allowed",
            "//allowed",
            "/./allowed",
            "/allowed;x",
            "/%61llowed",
            "/api/x/../y",
            "/api/../allowed",
        ] {
            assert!(matches(RuleAction::Allow, &open, path), "{path}");
        }
        // Some servers pass these to the handler of `/secret/:name` or `/:name`.
        for path in [
            "/secret/../allowed",
            "/secret/%2e%2e/allowed",
            "/secret/..%2fallowed",
            "/secret/..%2Fapi%2fx",
            "/secret/..;/allowed",
            "/secret//../allowed",
            "/secret%3f/../allowed",
            "/secret/x\\..\\..\\..\\allowed",
            "/secret/..%5callowed",
            "/api%2fx",
            "/api\\x",
            "/api/../secret",
        ] {
            assert!(!matches(RuleAction::Allow, &open, path), "{path}");
            assert!(!matches(RuleAction::Pass, &open, path), "{path}");
        }
        let closed = paths(&[], &["/secret"]);
        for path in ["/secret/../allowed", "/secret/..%2fallowed", "/x/../secret", "/x/..%2fsecret", "/%00"] {
            assert!(matches(RuleAction::Deny, &closed, path), "{path}");
        }
        assert!(!matches(RuleAction::Deny, &closed, "/allowed"));
    }
}
