//! The bodies of requests: documents in JSON or YAML, of a bounded size.

use crate::refusal::Refusal;
use serde_json::Value;
use tortie_model::codec;

/// A body larger than this is refused; etcd would not take the object either.
pub const LIMIT: usize = 3 << 20;

/// The one document in a body.
pub fn document(body: &[u8]) -> Result<Value, Refusal> {
    let unreadable =
        |why: String| Refusal::bad_request(format!("the body of the request cannot be read: {why}"));
    let mut documents = codec::documents(body).map_err(|error| unreadable(error.to_string()))?;
    match (documents.pop(), documents.pop()) {
        (Some(document @ Value::Object(_)), None) => Ok(document),
        (Some(_), None) => Err(unreadable("it is not an object".into())),
        (None, _) => Err(unreadable("it is empty".into())),
        (Some(_), Some(_)) => Err(unreadable("it has more than one document".into())),
    }
}

/// The type in a `Content-Type`, without its parameters.
pub fn media_type(header: &str) -> &str {
    header.split(';').next().unwrap_or_default().trim()
}

/// The object in the body of a write.
pub fn object(content_type: &str, body: &[u8]) -> Result<Value, Refusal> {
    match media_type(content_type) {
        "" | "application/json" | "application/yaml" | "application/x-yaml" => document(body),
        _ => Err(Refusal::unsupported_media_type("application/json, application/yaml")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_one_object() {
        for good in ["{\"kind\": \"Tier\"}", "kind: Tier\n", "---\nkind: Tier\n"] {
            assert_eq!(document(good.as_bytes()).unwrap()["kind"], "Tier", "{good}");
        }
        for bad in ["", "5", "kind: A\n---\nkind: B\n", "{\"a\":1,\"a\":2}", "{"] {
            assert_eq!(document(bad.as_bytes()).unwrap_err().code, 400, "{bad}");
        }
        assert_eq!(object("text/plain; charset=utf-8", b"{}").unwrap_err().code, 415);
    }
}
