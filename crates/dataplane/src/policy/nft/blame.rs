//! Maps a rejection by the kernel to the chain, rule, set or element that it is about.

use super::kernel::{RejectionReason, TransactionRejection};
use super::message::TableOperation;
use super::table::{ElementData, NftElement, SetType, TableFamily, parse_address};
use crate::failure::KernelObject;

/// An object that the kernel named when it rejected a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedObject {
    /// Name of the chain or set that it is, or that contains it.
    pub name: String,
    pub object: KernelObject,
    pub reason: RejectionReason,
    /// The rejected element, if it concerns a single workload.
    pub element: Option<NftElement>,
    /// The interface of that workload.
    pub interface: Option<String>,
}

/// Returns the objects that an operation creates, changes or removes.
pub fn list_objects(
    operations: &[TableOperation<'_>],
    position: usize,
    family: TableFamily,
) -> Vec<KernelObject> {
    match operations.get(position) {
        Some(TableOperation::AddTable) => vec![family.object()],
        _ => find_rejected_at(operations, position, &RejectionReason::default())
            .into_iter()
            .map(|rejected| rejected.object)
            .collect(),
    }
}

/// Returns the chains, rules, sets and elements that a rejection is about.
pub fn find_rejected(
    operations: &[TableOperation<'_>],
    rejection: &TransactionRejection,
) -> Vec<RejectedObject> {
    let rejected = rejection.operations.iter();
    rejected.flat_map(|(position, reason)| find_rejected_at(operations, *position, reason)).collect()
}

fn find_rejected_at(
    operations: &[TableOperation<'_>],
    position: usize,
    reason: &RejectionReason,
) -> Vec<RejectedObject> {
    let (name, object) = match operations.get(position) {
        None | Some(TableOperation::AddTable | TableOperation::DeleteTable) => return Vec::new(),
        Some(
            TableOperation::AddChain { name, .. }
            | TableOperation::FlushChain { name }
            | TableOperation::DeleteChain { name },
        ) => (*name, KernelObject::Chain { name: (*name).to_owned() }),
        Some(TableOperation::AddRule { chain, .. }) => {
            let earlier = operations.iter().take(position).filter(
                |operation| matches!(operation, TableOperation::AddRule { chain: other, .. } if other == chain),
            );
            (*chain, KernelObject::Rule { chain: (*chain).to_owned(), index: earlier.count() })
        }
        Some(TableOperation::AddSet { name, .. } | TableOperation::DeleteSet { name }) => {
            (*name, KernelObject::Set { name: (*name).to_owned() })
        }
        Some(
            TableOperation::AddElements { set, kind, elements }
            | TableOperation::DeleteElements { set, kind, elements },
        ) => {
            let rejected = elements.iter().map(|element| {
                let (object, interface) = element_object(set, *kind, element);
                let own = interface.is_some().then(|| (*element).clone());
                RejectedObject { interface, element: own, ..RejectedObject::new(set, object, reason) }
            });
            return rejected.collect();
        }
    };
    vec![RejectedObject::new(name, object, reason)]
}

impl RejectedObject {
    fn new(name: &str, object: KernelObject, reason: &RejectionReason) -> RejectedObject {
        RejectedObject {
            name: name.to_owned(),
            object,
            reason: reason.clone(),
            element: None,
            interface: None,
        }
    }
}

/// Returns the object for an element of a set or map, and the interface of the workload that it concerns.
pub fn element_object(set: &str, kind: SetType, element: &NftElement) -> (KernelObject, Option<String>) {
    let (text, interface) = describe_element(element, kind);
    let object = if kind.is_map() {
        KernelObject::MapElement { map: set.to_owned(), key: text }
    } else {
        KernelObject::SetElement { set: set.to_owned(), element: text }
    };
    (object, interface)
}

/// Formats an element as text, and returns the interface that it concerns.
fn describe_element(element: &NftElement, kind: SetType) -> (String, Option<String>) {
    let last = match &element.data {
        ElementData::Last(last) => Some(&**last),
        _ => None,
    };
    match kind {
        SetType::Interfaces | SetType::Chains => {
            let name = interface_name(&element.key);
            (name.clone(), Some(name))
        }
        SetType::Sources(_) | SetType::SourceNets(_) => {
            let (name, first) = element.key.split_at_checked(16).unwrap_or((&[], &element.key));
            let last = last.and_then(|last| last.get(16..));
            let name = interface_name(name);
            (format!("{name} . {}", describe_range(first, last)), Some(name))
        }
        SetType::Addresses(_) | SetType::Nets(_) | SetType::Translations(_) => {
            (describe_range(&element.key, last), None)
        }
        SetType::PairTranslations(_) => {
            let half = element.key.len() / 2;
            let (source, destination) = element.key.split_at_checked(half).unwrap_or((&element.key, &[]));
            (format!("{} . {}", describe_address(source), describe_address(destination)), None)
        }
        SetType::Ports(_) => {
            let length = element.key.len().saturating_sub(8);
            let (first, rest) = element.key.split_at_checked(length).unwrap_or((&element.key, &[]));
            (format!("{} . {}", describe_address(first), describe_port(rest)), None)
        }
        SetType::PortChains => (describe_port(&element.key), None),
        SetType::Flows { .. } => (format!("key of {} bytes", element.key.len()), None),
    }
}

/// Formats a protocol and a port, each padded to a register.
fn describe_port(bytes: &[u8]) -> String {
    let protocol = bytes.first().copied().unwrap_or_default();
    let port = bytes.get(4..6).map_or(0, |port| u16::from_be_bytes([port[0], port[1]]));
    format!("{protocol} . {port}")
}

fn describe_address(bytes: &[u8]) -> String {
    parse_address(bytes).map_or_else(|| format!("{bytes:02x?}"), |address| address.to_string())
}

fn describe_range(first: &[u8], last: Option<&[u8]>) -> String {
    match last {
        Some(last) => format!("{}-{}", describe_address(first), describe_address(last)),
        None => describe_address(first),
    }
}

fn interface_name(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::rule::{NftFamily, interface};
    use super::super::table::join;
    use super::*;

    #[test]
    fn elements_are_described_in_nft_notation() {
        let v4 = [10, 0, 0, 1];
        let cases = [
            (NftElement::key(interface("cali1")), SetType::Interfaces, "cali1", Some("cali1")),
            (NftElement::key(v4.to_vec()), SetType::Addresses(NftFamily::V4), "10.0.0.1", None),
            (
                NftElement::key(join(&[&v4, &[6], &443u16.to_be_bytes()])),
                SetType::Ports(NftFamily::V4),
                "10.0.0.1 . 6 . 443",
                None,
            ),
            (
                NftElement::jump(join(&[&[17], &53u16.to_be_bytes()]), "in-np/shop/dns"),
                SetType::PortChains,
                "17 . 53",
                None,
            ),
            (
                NftElement::key(join(&[&interface("cali1"), &v4])),
                SetType::Sources(NftFamily::V4),
                "cali1 . 10.0.0.1",
                Some("cali1"),
            ),
            (
                NftElement::range(vec![10, 0, 0, 0], vec![10, 0, 0, 255]),
                SetType::Nets(NftFamily::V4),
                "10.0.0.0-10.0.0.255",
                None,
            ),
        ];
        for (element, kind, text, about) in cases {
            assert_eq!(describe_element(&element, kind), (text.to_owned(), about.map(str::to_owned)));
        }
    }
}
