//! Translation of Neutron's objects into Calico resources. Pure: no I/O and no clock.

mod endpoint;
mod migration;
mod policy;
mod qos;
mod subnet;

pub use endpoint::{is_wanted, translate_port};
pub use migration::translate_migration;
pub use policy::{PolicyTranslation, translate_group};
pub use qos::translate_qos;
pub use subnet::translate_subnet;

use tortie_model::ValidationError;

/// Reason why an object cannot be translated. The datastore keeps its entry.
#[derive(Debug, thiserror::Error)]
pub enum TranslateError {
    #[error("port {port}: {field} is {value:?}: expected {expected}")]
    PortField { port: String, field: &'static str, value: String, expected: &'static str },
    #[error("subnet {subnet}: {field} is {value:?}: expected {expected}")]
    SubnetField { subnet: String, field: &'static str, value: String, expected: &'static str },
    #[error("{object}: {error}")]
    Invalid { object: String, error: ValidationError },
}
