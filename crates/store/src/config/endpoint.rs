//! Address of an etcd endpoint.

use std::fmt;
use std::path::PathBuf;
use tonic::transport::Uri;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EtcdEndpoint {
    Tcp { host: String, port: u16, tls: bool },
    Unix { path: PathBuf },
}

/// The reason why a text is not an endpoint.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    #[error("a unix endpoint needs an absolute path, as in unix:///run/tortie/datastore.sock")]
    RelativePath,
    #[error("not a URL: {0}")]
    Url(#[from] http::uri::InvalidUri),
    #[error("scheme {0} is not one of http, https, unix")]
    Scheme(String),
    #[error("a URL needs its scheme, as in https://HOST:PORT")]
    NoScheme,
    #[error("a URL needs a host, as in https://HOST:PORT")]
    NoHost,
    #[error("the port is not between 0 and 65535")]
    Port,
    #[error("a store's URL has no path")]
    Path,
}

impl EtcdEndpoint {
    /// Parses `http://HOST:PORT`, `https://HOST:PORT` or `unix:///PATH`.
    pub fn parse(text: &str) -> Result<EtcdEndpoint, EndpointError> {
        if let Some(path) = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")) {
            if !path.starts_with('/') {
                return Err(EndpointError::RelativePath);
            }
            return Ok(EtcdEndpoint::Unix { path: path.into() });
        }
        let uri: Uri = text.parse()?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            Some(other) => return Err(EndpointError::Scheme(other.to_owned())),
            None => return Err(EndpointError::NoScheme),
        };
        let Some(host) = uri.host().filter(|host| !host.is_empty()) else {
            return Err(EndpointError::NoHost);
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = match uri.port_u16() {
            Some(port) => port,
            // The parser drops a port out of range instead of rejecting it.
            None if text
                .rsplit(':')
                .next()
                .is_some_and(|end| end.starts_with(|c: char| c.is_ascii_digit())) =>
            {
                return Err(EndpointError::Port);
            }
            None if tls => 443,
            None => 80,
        };
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(EndpointError::Path);
        }
        Ok(EtcdEndpoint::Tcp { host, port, tls })
    }
}

impl fmt::Display for EtcdEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EtcdEndpoint::Tcp { host, port, tls } => {
                let scheme = if *tls { "https" } else { "http" };
                if host.contains(':') {
                    write!(f, "{scheme}://[{host}]:{port}")
                } else {
                    write!(f, "{scheme}://{host}:{port}")
                }
            }
            EtcdEndpoint::Unix { path } => write!(f, "unix://{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_prints_urls() {
        for text in
            ["http://10.9.0.11:2379", "https://etcd.example:2379", "https://[fd00::1]:2379", "unix:///run/s"]
        {
            assert_eq!(EtcdEndpoint::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(EtcdEndpoint::parse("http://host/").unwrap().to_string(), "http://host:80");
        assert_eq!(EtcdEndpoint::parse("unix:/run/s").unwrap().to_string(), "unix:///run/s");
    }

    #[test]
    fn says_what_is_wrong_with_a_url() {
        for (text, part) in [
            ("10.9.0.11:2379", "scheme"),
            ("etcd.example", "scheme"),
            ("ftp://host:1", "ftp"),
            ("unix://run/s", "absolute"),
            ("http://host:2379/v3", "path"),
            ("http://host:99999", "port"),
            ("http://", ""),
            ("http://ho st", "URL"),
            ("", ""),
        ] {
            let reason = EtcdEndpoint::parse(text).unwrap_err();
            assert!(reason.to_string().contains(part), "{text}: {reason}");
        }
    }
}
