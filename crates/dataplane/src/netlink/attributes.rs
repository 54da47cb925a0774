//! Encodes and decodes netlink attributes.

/// Length of an attribute's header, and the alignment of attributes.
const HEADER: usize = 4;
const NLA_F_NESTED: u16 = 0x8000;

#[derive(Clone, Debug, Default)]
pub struct NetlinkAttributes(Vec<u8>);

impl NetlinkAttributes {
    pub fn bytes(mut self, kind: u16, value: &[u8]) -> NetlinkAttributes {
        self.push(kind, value);
        self
    }

    pub fn text(self, kind: u16, value: &str) -> NetlinkAttributes {
        let mut value = value.as_bytes().to_vec();
        value.push(0);
        self.bytes(kind, &value)
    }

    pub fn number(self, kind: u16, value: u32) -> NetlinkAttributes {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub fn nest(mut self, kind: u16, inner: NetlinkAttributes) -> NetlinkAttributes {
        self.push(kind | NLA_F_NESTED, &inner.0);
        self
    }

    fn push(&mut self, kind: u16, value: &[u8]) {
        // No value exceeds this length: lists of elements are split by the caller, names are validated.
        let length = u16::try_from(value.len() + HEADER).unwrap_or(u16::MAX);
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(HEADER), 0);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Iterates over the attributes of a message or a nest as pairs of type and value.
pub fn read(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let header = rest.get(..HEADER)?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & 0x3fff;
        let value = rest.get(HEADER..length)?;
        rest = rest.get(length.next_multiple_of(HEADER)..).unwrap_or_default();
        Some((kind, value))
    })
}

pub fn find(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    read(bytes).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}
