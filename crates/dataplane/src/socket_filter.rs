//! Filters our own changes out of netlink event sockets. They are not needed, and bulk changes would fill the receive
//! buffer.

/// Returns a classic BPF filter that accepts only messages caused by netlink ports other than these. All messages of
/// one datagram have the same cause.
pub fn ignore_ports(ports: &[u32]) -> Vec<u8> {
    // Instructions: operation, jump if true, jump if false, operand.
    const BPF_LOAD_WORD: u16 = 0x20;
    const BPF_JUMP_EQUAL: u16 = 0x15;
    const BPF_RETURN: u16 = 0x06;
    const NLMSG_PORT_OFFSET: u32 = 12;
    let mut program = vec![(BPF_LOAD_WORD, 0, 0, NLMSG_PORT_OFFSET)];
    for (number, port) in ports.iter().enumerate() {
        // Jumps to the last instruction, past the remaining comparisons and the accepting return.
        let jump = u8::try_from(ports.len() - number).unwrap_or(u8::MAX);
        // BPF loads words in network byte order.
        program.push((BPF_JUMP_EQUAL, jump, 0, port.to_be()));
    }
    program.extend([(BPF_RETURN, 0, 0, u32::MAX), (BPF_RETURN, 0, 0, 0)]);
    let mut bytes = Vec::new();
    for (code, if_true, if_false, operand) in program {
        bytes.extend(code.to_ne_bytes());
        bytes.extend([if_true, if_false]);
        bytes.extend(operand.to_ne_bytes());
    }
    bytes
}
