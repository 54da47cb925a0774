//! Content negotiation: the response format for an `Accept` header.

use crate::refusal::StatusError;

/// Representation of objects in a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResponseForm {
    #[default]
    Whole,
    /// Rows for human-readable output.
    Table,
    /// Metadata only.
    Metadata,
    /// Discovery in one aggregated document.
    Aggregated,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResponseEncoding {
    #[default]
    Json,
    Yaml,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponseFormat {
    pub form: ResponseForm,
    pub encoding: ResponseEncoding,
}

/// Returns the first supported format of an `Accept` header.
pub fn negotiate_format(accept: &str) -> Result<ResponseFormat, StatusError> {
    if accept.trim().is_empty() {
        return Ok(ResponseFormat::default());
    }
    accept.split(',').find_map(parse_clause).ok_or_else(StatusError::not_acceptable)
}

fn parse_clause(clause: &str) -> Option<ResponseFormat> {
    let mut parts = clause.split(';').map(str::trim);
    let encoding = match parts.next()? {
        "application/json" | "application/*" | "*/*" => ResponseEncoding::Json,
        "application/yaml" => ResponseEncoding::Yaml,
        _ => return None,
    };
    let [mut kind, mut group, mut version] = [""; 3];
    for parameter in parts {
        match parameter.split_once('=') {
            Some(("as", value)) => kind = value,
            Some(("g", value)) => group = value,
            Some(("v", value)) => version = value,
            _ => {}
        }
    }
    let form = match (kind, group, version) {
        ("", ..) => ResponseForm::Whole,
        ("Table", "meta.k8s.io", "v1" | "v1beta1") => ResponseForm::Table,
        ("PartialObjectMetadata" | "PartialObjectMetadataList", "meta.k8s.io", "v1" | "v1beta1") => {
            ResponseForm::Metadata
        }
        ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2") => ResponseForm::Aggregated,
        _ => return None,
    };
    Some(ResponseFormat { form, encoding })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_supported_format_is_chosen() {
        for (accept, form, encoding) in [
            ("", ResponseForm::Whole, ResponseEncoding::Json),
            ("*/*", ResponseForm::Whole, ResponseEncoding::Json),
            (
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
                ResponseForm::Table,
                ResponseEncoding::Json,
            ),
            (
                "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
                ResponseForm::Metadata,
                ResponseEncoding::Json,
            ),
            (
                "application/vnd.kubernetes.protobuf, application/yaml",
                ResponseForm::Whole,
                ResponseEncoding::Yaml,
            ),
            (
                "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json",
                ResponseForm::Aggregated,
                ResponseEncoding::Json,
            ),
            (
                "application/json;g=apidiscovery.k8s.io;v=v9;as=APIGroupDiscoveryList,application/json",
                ResponseForm::Whole,
                ResponseEncoding::Json,
            ),
        ] {
            assert_eq!(negotiate_format(accept), Ok(ResponseFormat { form, encoding }), "{accept}");
        }
        assert_eq!(negotiate_format("application/vnd.kubernetes.protobuf").unwrap_err().code(), 406);
    }
}
