//! The client side of the daemon's CNI socket: one request and one response per connection.
//!
//! The first line of the response is `0` or `1`, the exit code of the plugin. The rest is printed as it is.

use crate::error::{CniError, code};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

pub const DEFAULT_SOCKET: &str = "/run/tortie/cni.sock";
/// The environment variable and the key of the network configuration that name another socket.
pub const SOCKET_VARIABLE: &str = "TORTIE_CNI_SOCKET";
pub const SOCKET_KEY: &str = "tortie_socket";

/// Timeout for reads and writes on the socket. The daemon's own timeout is shorter, so that it cleans up before the
/// plugin gives up.
const DAEMON_TIMEOUT: Duration = Duration::from_secs(90);

/// Returns the path of the daemon's socket: from the network configuration, else from the environment, else the
/// default.
pub(crate) fn find_path(config: &str) -> String {
    [value_text(config, SOCKET_KEY), std::env::var(SOCKET_VARIABLE).ok()]
        .into_iter()
        .flatten()
        .find(|path| !path.is_empty())
        .unwrap_or_else(|| DEFAULT_SOCKET.to_owned())
}

/// Returns the value of a key of a JSON object that is a string or a number, without a JSON parser. The daemon parses the
/// configuration properly; the plugin only needs the path of the socket and its log file.
///
/// Only keys of the outermost object count. Authors of pods control the content of inner objects: Multus copies `cni-args`
/// from an annotation to `args`, and runtimes copy annotations to `runtimeConfig`.
pub(crate) fn value_text(json: &str, key: &str) -> Option<String> {
    let mut rest = json;
    let mut depth = 0usize;
    while let Some(first) = rest.chars().next() {
        let after = &rest[first.len_utf8()..];
        rest = after;
        match first {
            '{' | '[' => depth += 1,
            '}' | ']' => depth = depth.checked_sub(1)?,
            '"' => {
                let (text, after) = split_string(after)?;
                rest = after;
                let value = after.trim_start().strip_prefix(':');
                if let Some(value) = value.filter(|_| depth == 1 && text == key) {
                    return read_value(value.trim_start());
                }
            }
            _ => {}
        }
    }
    None
}

/// Returns the string or the number at the beginning of `json`.
fn read_value(json: &str) -> Option<String> {
    if json.starts_with(|first: char| first.is_ascii_digit()) {
        return Some(json.chars().take_while(char::is_ascii_digit).collect());
    }
    split_string(json.strip_prefix('"')?).map(|(text, _)| text)
}

/// Returns the string that begins behind its opening quote, and what follows its end. Of the escapes, those of single
/// characters are decoded.
fn split_string(json: &str) -> Option<(String, &str)> {
    let mut text = String::new();
    let mut chars = json.chars();
    loop {
        match chars.next()? {
            '"' => return Some((text, chars.as_str())),
            '\\' => text.push(chars.next()?),
            other => text.push(other),
        }
    }
}

pub(crate) fn exchange(path: &str, request: &[u8]) -> Result<(bool, Vec<u8>), CniError> {
    let mut stream = UnixStream::connect(path)
        .map_err(|error| convert_daemon_error("cannot reach the node's daemon", path, error.to_string()))?;
    let mut answer = Vec::new();
    let exchanged = stream
        .set_read_timeout(Some(DAEMON_TIMEOUT))
        .and_then(|()| stream.set_write_timeout(Some(DAEMON_TIMEOUT)))
        .and_then(|()| stream.write_all(request))
        .and_then(|()| stream.shutdown(Shutdown::Write))
        .and_then(|()| stream.read_to_end(&mut answer));
    if let Err(error) = exchanged {
        return Err(convert_daemon_error("no answer from the node's daemon", path, error.to_string()));
    }
    match answer.split_at_checked(2) {
        Some((b"0\n", text)) => Ok((true, text.to_vec())),
        Some((b"1\n", text)) => Ok((false, text.to_vec())),
        _ => {
            let what = "the node's daemon went away before it answered";
            Err(convert_daemon_error(what, path, "the request may be repeated".to_owned()))
        }
    }
}

fn convert_daemon_error(what: &str, path: &str, details: String) -> CniError {
    CniError::new(code::TRY_AGAIN, format!("{what} at {path}; is `tortie node` running on this host?"))
        .with(details)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_is_found_in_the_configuration() {
        let config = r#"{"name":"n", "tortie_socket" : "\/run\/a \"b\".sock"}"#;
        assert_eq!(value_text(config, SOCKET_KEY).as_deref(), Some("/run/a \"b\".sock"));
        for config in ["", "{", r#"{"tortie_socket"}"#, r#"{"tortie_socket":{}}"#, r#"{"tortie_socket":"x"#] {
            assert_eq!(value_text(config, SOCKET_KEY), None, "{config}");
        }
        assert_eq!(value_text(r#"{"a": 10}"#, "a").as_deref(), Some("10"));
    }

    #[test]
    fn only_keys_of_the_outermost_object_count() {
        let foreign = r#""tortie_socket":"/tmp/x","log_file_path":"/etc/x""#;
        for config in [
            format!(r#"{{"args":{{"cni":{{{foreign}}}}},"name":"n"}}"#),
            format!(r#"{{"list":[{{{foreign}}}],"name":"tortie_socket"}}"#),
            r#"{"tortie_socket\"":"/tmp/x","text":"{\"tortie_socket\":\"/tmp/x\"}"}"#.to_owned(),
            format!(r#"{{}}}},{{{foreign}}}"#),
        ] {
            assert_eq!(value_text(&config, SOCKET_KEY), None, "{config}");
        }
        let own = format!(r#"{{"args":{{{foreign}}},"text":"}}","tortie_socket":"/run/own"}}"#);
        assert_eq!(value_text(&own, SOCKET_KEY).as_deref(), Some("/run/own"));
    }

    #[test]
    fn an_unreachable_daemon_means_try_again() {
        let error = exchange("/nonexistent/cni.sock", b"{}").unwrap_err();
        assert_eq!(error.code, code::TRY_AGAIN);
    }
}
