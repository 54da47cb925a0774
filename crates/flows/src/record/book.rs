//! The objects that the addresses of new flows belong to, as the caller has looked them up.

use std::collections::HashMap;
use std::net::IpAddr;
use tortie_plan::{AddressIdentity, ServiceIdentity};

/// Objects by address. An address that is not in it belongs to no object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressBook {
    pub objects: HashMap<IpAddr, AddressIdentity>,
    pub services: HashMap<IpAddr, ServiceIdentity>,
}
