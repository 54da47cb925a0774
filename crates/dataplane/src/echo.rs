//! Sockets that listen for events hear of our own changes too. That is no news, and much of it must not fill the buffer.

/// A filter for such a socket that lets in what others than this port did. All messages that come at once are of one
/// cause.
pub(crate) fn others_than(port: u32) -> Vec<u8> {
    // Operation, how far to jump if so and if not, operand.
    const LOAD: u16 = 0x20;
    const IS: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const PORT_AT: u32 = 12;
    let program = [
        (LOAD, 0, 0, PORT_AT),
        // Loaded as if it were in network order.
        (IS, 0, 1, port.to_be()),
        (RETURN, 0, 0, 0),
        (RETURN, 0, 0, u32::MAX),
    ];
    let bytes = |(code, so, not, operand): (u16, u8, u8, u32)| {
        let (code, operand) = (code.to_ne_bytes(), operand.to_ne_bytes());
        [code[0], code[1], so, not, operand[0], operand[1], operand[2], operand[3]]
    };
    program.into_iter().flat_map(bytes).collect()
}
