//! UIDs of resources that represent another object: distinct from that object's UID, and always the same.

use uuid::Uuid;

/// Reverses the bits of every byte except the two that contain the version and the variant of the UUID. The function is
/// its own inverse. Text that is not a UUID is returned unchanged.
pub fn convert(uid: &str) -> String {
    let Ok(uuid) = uid.parse::<Uuid>() else { return uid.to_owned() };
    let mut bytes = *uuid.as_bytes();
    for (index, byte) in bytes.iter_mut().enumerate() {
        if index != 6 && index != 8 {
            *byte = byte.reverse_bits();
        }
    }
    Uuid::from_bytes(bytes).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn converts_as_the_reference_does() {
        let (one, other) = ("80000000-0000-4000-8000-000000000001", "01000000-0000-4000-8000-000000000080");
        assert_eq!(convert(one), other);
        assert_eq!(convert(other), one);
        assert_eq!(convert("not-a-uuid"), "not-a-uuid");
        assert_eq!(convert(""), "");
    }

    proptest! {
        #[test]
        fn twice_is_where_it_began(bytes in any::<[u8; 16]>()) {
            let uid = Uuid::from_bytes(bytes).to_string();
            prop_assert_eq!(convert(&convert(&uid)), uid);
        }
    }
}
