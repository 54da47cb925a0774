//! Splits received data into netlink messages.

/// One netlink message.
pub struct NetlinkFrame<'d> {
    pub kind: u16,
    pub sequence: u32,
    pub body: &'d [u8],
}

impl<'d> NetlinkFrame<'d> {
    /// Returns the attributes behind the netfilter header.
    pub fn attributes(&self) -> Option<&'d [u8]> {
        self.body.get(4..)
    }
}

pub fn frames(data: &[u8]) -> impl Iterator<Item = NetlinkFrame<'_>> {
    const HEADER: usize = 16;
    let mut rest = data;
    std::iter::from_fn(move || {
        let header = rest.get(..HEADER)?;
        let number = |at: usize| {
            header.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes)
        };
        let length = usize::try_from(number(0)?).ok()?;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let body = rest.get(HEADER..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(NetlinkFrame { kind, sequence: number(8)?, body })
    })
}
