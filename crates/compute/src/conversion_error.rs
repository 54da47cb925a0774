//! The reason why a value of an object cannot be used in the plan.

use ipnet::IpNet;
use std::fmt;
use thiserror::Error;
use tortie_model::ValidationError;
use tortie_model::selector::SelectorParseError;
use tortie_model::selector::rewrite::RewriteError;

/// A value of a field that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConversionError {
    /// JSON key of the field.
    pub field: &'static str,
    /// As written; empty if the field is missing.
    pub value: String,
    pub reason: ConversionReason,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConversionReason {
    #[error("is not a CIDR")]
    NotCidr,
    #[error("is not an address")]
    NotAddress,
    #[error("is not a MAC address of six bytes")]
    NotMac,
    #[error("cannot be the name of an interface")]
    NotInterfaceName,
    #[error("is not a community")]
    NotCommunity,
    #[error("is not a priority")]
    NotPriority,
    #[error("is not an ICMP type or code")]
    NotIcmp,
    #[error("is neither 4 nor 6")]
    NotIpVersion,
    #[error("is not known")]
    Unknown,
    #[error("is a named port, which nodes do not have")]
    NamedPortOfNode,
    #[error("it has no interface name")]
    NoInterface,
    #[error("it may use other source addresses, but workloadSourceSpoofing is not Any")]
    SpoofingForbidden,
    #[error("a cidr needs a matchOperator")]
    NoMatchOperator,
    #[error("an operation is empty")]
    EmptyOperation,
    #[error(transparent)]
    Selector(#[from] SelectorParseError),
    #[error(transparent)]
    Selectors(#[from] RewriteError),
}

impl ConversionError {
    pub(crate) fn new(
        field: &'static str,
        value: impl fmt::Display,
        reason: ConversionReason,
    ) -> ConversionError {
        ConversionError { field, value: value.to_string(), reason }
    }
}

impl fmt::Display for ConversionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ConversionError { field, value, reason } = self;
        match reason {
            ConversionReason::NotCidr
            | ConversionReason::NotMac
            | ConversionReason::NotInterfaceName
            | ConversionReason::NotCommunity => write!(f, "{value:?} {reason}"),
            ConversionReason::NotPriority | ConversionReason::NotIcmp => write!(f, "{value} {reason}"),
            ConversionReason::NotAddress | ConversionReason::NamedPortOfNode => {
                write!(f, "{field}: {value:?} {reason}")
            }
            // Protocols and versions may be numbers.
            ConversionReason::Unknown if *field != "protocol" => write!(f, "{field} {value:?} {reason}"),
            ConversionReason::Unknown | ConversionReason::NotIpVersion => {
                write!(f, "{field} {value} {reason}")
            }
            ConversionReason::Selector(error) => write!(f, "{field}: {error}"),
            ConversionReason::NoInterface
            | ConversionReason::SpoofingForbidden
            | ConversionReason::NoMatchOperator
            | ConversionReason::EmptyOperation
            | ConversionReason::Selectors(_) => reason.fmt(f),
        }
    }
}

impl std::error::Error for ConversionError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.reason)
    }
}

/// Parses a network, which may have host bits.
pub(crate) fn parse_cidr(field: &'static str, text: &str) -> Result<IpNet, ConversionError> {
    text.parse().map_err(|_| ConversionError::new(field, text, ConversionReason::NotCidr))
}

/// Reason why an object takes no effect.
#[derive(Debug, Error)]
pub(crate) enum ObjectError {
    #[error(transparent)]
    Invalid(#[from] ValidationError),
    #[error(transparent)]
    Conversion(#[from] ConversionError),
}
