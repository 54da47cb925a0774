//! Rewrites the headers of an HTTP/2 connection. The result must not depend on how the bytes are split, and must not be
//! longer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tortie_http::authority::rewritten;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fuzz_target!(|bytes: &[u8]| {
    let Some((size, bytes)) = bytes.split_first() else { return };
    let connection = [PREFACE, bytes].concat();
    let whole = rewritten(std::iter::once(&connection[..]));
    let pieces = rewritten(connection.chunks(usize::from(*size).max(1)));
    assert_eq!(whole, pieces);
    assert!(whole.len() <= connection.len());
    assert!(whole.starts_with(PREFACE));
});
