//! Sockets that listen for events hear of our own changes too. That is no news, and much of it must not fill the buffer.

/// A classic BPF filter for such a socket that lets in what was done through other netlink ports than these. All
/// messages that come at once are of one cause.
pub(crate) fn ignore_ports(ports: &[u32]) -> Vec<u8> {
    // Operation, how far to jump if so and if not, operand.
    const LOAD: u16 = 0x20;
    const IS: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const PORT_AT: u32 = 12;
    let mut program = vec![(LOAD, 0, 0, PORT_AT)];
    for (number, port) in ports.iter().enumerate() {
        // To the last instruction, past the other comparisons and the one that lets in.
        let jump = u8::try_from(ports.len() - number).unwrap_or(u8::MAX);
        // Loaded as if it were in network order.
        program.push((IS, jump, 0, port.to_be()));
    }
    program.extend([(RETURN, 0, 0, u32::MAX), (RETURN, 0, 0, 0)]);
    let bytes = |(code, so, not, operand): (u16, u8, u8, u32)| {
        let (code, operand) = (code.to_ne_bytes(), operand.to_ne_bytes());
        [code[0], code[1], so, not, operand[0], operand[1], operand[2], operand[3]]
    };
    program.into_iter().flat_map(bytes).collect()
}
