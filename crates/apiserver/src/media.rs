//! Content negotiation: the response format for an `Accept` header.

use crate::refusal::Refusal;

/// Representation of objects in a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
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
pub enum Encoding {
    #[default]
    Json,
    Yaml,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub form: Form,
    pub encoding: Encoding,
}

/// Returns the first supported format of an `Accept` header.
pub fn negotiate(accept: &str) -> Result<Wanted, Refusal> {
    if accept.trim().is_empty() {
        return Ok(Wanted::default());
    }
    accept.split(',').find_map(one).ok_or_else(Refusal::not_acceptable)
}

fn one(clause: &str) -> Option<Wanted> {
    let mut parts = clause.split(';').map(str::trim);
    let encoding = match parts.next()? {
        "application/json" | "application/*" | "*/*" => Encoding::Json,
        "application/yaml" => Encoding::Yaml,
        _ => return None,
    };
    let (mut kind, mut group, mut version) = ("", "", "");
    for parameter in parts {
        match parameter.split_once('=') {
            Some(("as", value)) => kind = value,
            Some(("g", value)) => group = value,
            Some(("v", value)) => version = value,
            _ => {}
        }
    }
    let form = match (kind, group, version) {
        ("", ..) => Form::Whole,
        ("Table", "meta.k8s.io", "v1" | "v1beta1") => Form::Table,
        ("PartialObjectMetadata" | "PartialObjectMetadataList", "meta.k8s.io", "v1" | "v1beta1") => {
            Form::Metadata
        }
        ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2") => Form::Aggregated,
        _ => return None,
    };
    Some(Wanted { form, encoding })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_form_that_can_be_had_is_taken() {
        for (accept, form, encoding) in [
            ("", Form::Whole, Encoding::Json),
            ("*/*", Form::Whole, Encoding::Json),
            ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", Form::Table, Encoding::Json),
            (
                "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
                Form::Metadata,
                Encoding::Json,
            ),
            ("application/vnd.kubernetes.protobuf, application/yaml", Form::Whole, Encoding::Yaml),
            (
                "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json",
                Form::Aggregated,
                Encoding::Json,
            ),
            (
                "application/json;g=apidiscovery.k8s.io;v=v9;as=APIGroupDiscoveryList,application/json",
                Form::Whole,
                Encoding::Json,
            ),
        ] {
            assert_eq!(negotiate(accept), Ok(Wanted { form, encoding }), "{accept}");
        }
        assert_eq!(negotiate("application/vnd.kubernetes.protobuf").unwrap_err().code, 406);
    }
}
