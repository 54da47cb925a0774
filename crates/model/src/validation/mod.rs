//! Validation of objects. Reports every error with the field's path, its value and the reason.

mod checker;
mod checks;
mod path;

pub use checker::FieldChecker;
pub use checks::{InclusiveRange, NetworkFamily};
pub(crate) use checks::{is_name_byte, parse_cidr};

use std::fmt;

/// A validation error of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Path as Calico prints it: `Spec.CIDR`, `Metadata.Name`, `Spec.Ingress[0].Source.Nets[1]`.
    pub name: String,
    pub value: String,
    pub reason: String,
}

/// All validation errors of an object; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidationError {
    pub errors: Vec<FieldError>,
}

impl ValidationError {
    pub fn one(name: impl Into<String>, value: impl fmt::Display, reason: impl Into<String>) -> Self {
        ValidationError {
            errors: vec![FieldError { name: name.into(), value: value.to_string(), reason: reason.into() }],
        }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = '{}' ({})", self.name, self.value, self.reason)
    }
}

impl fmt::Display for ValidationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = self.errors.as_slice() {
            return write!(f, "error with field {only}");
        }
        f.write_str("error with the following fields:")?;
        self.errors.iter().try_for_each(|error| write!(f, "\n-  {error}"))
    }
}

impl std::error::Error for ValidationError {}
