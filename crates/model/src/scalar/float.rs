//! Floating-point numbers that print like Calico's: 50, not 50.0.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;

#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct CalicoFloat(pub f64);

impl CalicoFloat {
    /// Returns the value as an integer if it is one that a float represents exactly.
    fn whole(self) -> Option<i64> {
        let n = self.0 as i64;
        (n as f64 == self.0 && n != i64::MAX).then_some(n)
    }
}

impl Serialize for CalicoFloat {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.whole() {
            Some(n) => serializer.serialize_i64(n),
            None => serializer.serialize_f64(self.0),
        }
    }
}

impl fmt::Display for CalicoFloat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.whole() {
            Some(n) => n.fmt(f),
            None => self.0.fmt(f),
        }
    }
}

impl From<f64> for CalicoFloat {
    fn from(n: f64) -> CalicoFloat {
        CalicoFloat(n)
    }
}

#[cfg(test)]
mod tests {
    use super::CalicoFloat;

    #[test]
    fn whole_numbers_have_no_fraction() {
        for (n, text) in [
            (50.0, "50"),
            (0.0, "0"),
            (-3.0, "-3"),
            (0.5, "0.5"),
            (1e6, "1000000"),
            (1e18, "1000000000000000000"),
        ] {
            assert_eq!(serde_json::to_string(&CalicoFloat(n)).unwrap(), text);
            assert_eq!(serde_json::from_str::<CalicoFloat>(text).unwrap(), CalicoFloat(n));
        }
    }
}
