//! The status that a node reports about itself and its endpoints.

use serde::{Deserialize, Serialize, Serializer};

/// Periodic liveness report of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FelixHeartbeat {
    /// RFC 3339, UTC, whole seconds.
    pub time: String,
    /// In seconds.
    #[serde(default, serialize_with = "shortest")]
    pub uptime: f64,
    /// Whether this is the first report since the node's daemon started.
    #[serde(default)]
    pub first_update: bool,
}

/// The status of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointStatus {
    pub status: EndpointState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EndpointState {
    Up,
    Down,
    Error,
}

/// Serialises a whole number without a fraction, as Calico does.
fn shortest<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if number.fract() == 0.0 && number.abs() < EXACT {
        serializer.serialize_i64(*number as i64)
    } else {
        serializer.serialize_f64(*number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_values_are_byte_identical() {
        for text in [
            r#"{"time":"2026-03-01T10:20:30Z","uptime":12.5,"first_update":true}"#,
            r#"{"time":"2026-03-01T10:20:30Z","uptime":90,"first_update":false}"#,
        ] {
            let heartbeat: FelixHeartbeat = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&heartbeat).unwrap(), text);
        }
        for (text, state) in [
            (r#"{"status":"up"}"#, EndpointState::Up),
            (r#"{"status":"down"}"#, EndpointState::Down),
            (r#"{"status":"error"}"#, EndpointState::Error),
        ] {
            assert_eq!(serde_json::to_string(&EndpointStatus { status: state }).unwrap(), text);
            assert_eq!(serde_json::from_str::<EndpointStatus>(text).unwrap().status, state);
        }
        assert!(serde_json::from_str::<EndpointStatus>(r#"{"status":"sideways"}"#).is_err());
    }
}
