//! HTTP policy: requests through a real Envoy without a filter, with a server that allows everything and with `tortie l7
//! serve`; then checks without Envoy, and memory.

mod checks;
mod envoy;
mod load;
mod policy;
mod servers;

use crate::SuiteResult;
use crate::plain;

/// Measures requests through Envoy.
pub fn requests() -> SuiteResult {
    envoy::measure().map_err(plain)
}

/// Measures checks of the server alone.
pub fn checks() -> SuiteResult {
    checks::measure().map_err(plain)
}
