//! The TLS files of the metrics server, from the settings.

use std::path::PathBuf;
use tortie_compute::{ClientAuth, NodeParameters};
use tortie_http::{ListenerTlsFiles, TlsClientPolicy};

/// Returns None if the settings name neither a certificate nor a key. With only one of the two, every connection
/// fails.
pub fn read_tls_files(parameters: &NodeParameters) -> Option<ListenerTlsFiles> {
    let file = |text: &str| Some(PathBuf::from(text)).filter(|path| !path.as_os_str().is_empty());
    let given = [&parameters.prometheus_metrics_cert_file, &parameters.prometheus_metrics_key_file]
        .map(|text| file(text));
    let [certificate, key] = match given {
        [None, None] => return None,
        some => some.map(Option::unwrap_or_default),
    };
    let clients =
        match (file(&parameters.prometheus_metrics_ca_file), parameters.prometheus_metrics_client_auth) {
            (_, ClientAuth::None) | (None, _) => TlsClientPolicy::Anybody,
            (Some(authority), ClientAuth::IfGiven) => TlsClientPolicy::SignedBy { authority, or_none: true },
            (Some(authority), ClientAuth::Required) => {
                TlsClientPolicy::SignedBy { authority, or_none: false }
            }
        };
    Some(ListenerTlsFiles { certificate, key, clients })
}
