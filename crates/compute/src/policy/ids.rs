//! IDs of four bytes, with a separate type for each kind of object.

use std::hash::Hash;

/// ID of an object in a table.
pub(super) trait TableId: Copy + Eq + Ord + Hash + Default {
    fn new(number: u32) -> Self;
    fn number(self) -> u32;
}

macro_rules! ids {
    ($($(#[$about:meta])* $name:ident,)*) => {$(
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub(super) struct $name(u32);

        impl TableId for $name {
            fn new(number: u32) -> Self {
                $name(number)
            }

            fn number(self) -> u32 {
                self.0
            }
        }
    )*};
}

ids! {
    /// An interned string.
    Symbol,
    /// A set of labels.
    LabelSetId,
    /// The keys of a set of labels.
    KeyListId,
    /// A list of profiles.
    ProfileListId,
    /// A list of named ports.
    PortListId,
    /// Endpoints that no selector can distinguish.
    ClassId,
    /// An object with labels and addresses.
    LabelledId,
    /// A selector of a matcher.
    SelectorId,
    /// The rules of a policy or a profile, both directions.
    RulesId,
    /// A policy of the policy table.
    PolicySlot,
    /// An address set in use.
    SetSlot,
}

/// Returns the ID of no object: no table ever gets so long.
pub(super) fn nothing<I: TableId>() -> I {
    I::new(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_take_four_bytes() {
        assert_eq!([size_of::<Symbol>(), size_of::<ClassId>(), size_of::<PolicySlot>()], [4; 3]);
    }
}
