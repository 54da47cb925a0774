//! Names of the custom resources of IPAM, and the labels by which block affinities are selected.

use ipnet::IpNet;
use sha2::{Digest as _, Sha256};
use sha3::Sha3_256;
use tortie_model::key::AffinityType;

/// Maximum length of object names. As in Calico, names have to be shorter than this before they are cut.
const MAX_OBJECT_NAME_LENGTH: usize = 253;

pub const HOSTNAME_LABEL: &str = "projectcalico.org/hostname-hash";
pub const AFFINITY_TYPE_LABEL: &str = "projectcalico.org/affinity-type";
pub const IP_VERSION_LABEL: &str = "projectcalico.org/ip-version";

/// Returns the name of a block, for example `10-8-3-64-26`.
pub fn block(cidr: &IpNet) -> String {
    cidr.trunc().to_string().replace(['.', ':', '/'], "-")
}

/// Returns the name of an affinity: owner and block. If the owner has to be cut, a hash keeps the name unique.
pub fn affinity(owner: &str, cidr: &IpNet) -> String {
    let block = block(cidr);
    let name = format!("{owner}-{block}");
    if name.len() < MAX_OBJECT_NAME_LENGTH {
        return name;
    }
    let kept = (MAX_OBJECT_NAME_LENGTH - 1).saturating_sub(block.len() + 13);
    let kept: String = owner.chars().take(kept).collect();
    let hash = hex(&Sha256::digest(format!("{owner}{block}")));
    format!("{kept}-{block}-{}", hash.get(..11).unwrap_or_default())
}

pub fn handle(id: &str) -> String {
    id.to_lowercase()
}

/// Returns a hash of the hostname: the name itself may be too long for a label value.
pub fn hostname_hash(host: &str) -> String {
    data_encoding::BASE32_NOPAD.encode(&Sha3_256::digest(host))
}

pub fn affinity_labels(affinity: AffinityType, owner: &str, cidr: &IpNet) -> [(&'static str, String); 3] {
    [
        (HOSTNAME_LABEL, hostname_hash(owner)),
        (AFFINITY_TYPE_LABEL, affinity.to_string()),
        (IP_VERSION_LABEL, version(cidr).to_owned()),
    ]
}

pub fn version(cidr: &IpNet) -> &'static str {
    match cidr {
        IpNet::V4(_) => "4",
        IpNet::V6(_) => "6",
    }
}

pub fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn names_are_those_of_other_clients() {
        assert_eq!(block(&net("10.8.3.64/26")), "10-8-3-64-26");
        assert_eq!(block(&net("10.8.3.70/26")), "10-8-3-64-26");
        assert_eq!(block(&net("fd00:65::40/122")), "fd00-65--40-122");
        assert_eq!(affinity("rack1-n7", &net("10.8.3.64/26")), "rack1-n7-10-8-3-64-26");
        assert_eq!(handle("k8s-pod-network.6F1d"), "k8s-pod-network.6f1d");
        assert_eq!(version(&net("fd00::/122")), "6");
    }

    #[test]
    fn long_names_are_cut_and_stay_apart() {
        let cidr = net("10.8.3.64/26");
        let fits = "a".repeat(252 - "-10-8-3-64-26".len());
        assert_eq!(affinity(&fits, &cidr), format!("{fits}-10-8-3-64-26"));
        let (one, other) = (format!("{fits}b"), format!("{fits}c"));
        let cut = affinity(&one, &cidr);
        assert_eq!(cut.len(), MAX_OBJECT_NAME_LENGTH - 1);
        assert_ne!(cut, affinity(&other, &cidr));
        let hash = hex(&Sha256::digest(format!("{one}10-8-3-64-26")));
        assert!(cut.ends_with(&format!("-10-8-3-64-26-{}", &hash[..11])), "{cut}");
    }

    #[test]
    fn a_hash_fits_into_a_label() {
        let hash = hostname_hash("rack1-n7");
        assert_eq!(hash.len(), 52);
        assert!(hash.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit()), "{hash}");
        assert_ne!(hash, hostname_hash("rack1-n8"));
    }
}
