//! Parses any bytes as a DNS response. Parsing must terminate, also with compression pointers that form a loop.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tortie_store::backend::etcd::discovery::message::{SrvResponse, answer, question};

const NAME: &str = "_etcd-client._tcp.example.com";

fuzz_target!(|bytes: &[u8]| {
    let _ = answer(7, NAME, bytes);
    // Also parse the bytes behind a header that matches the query, which mutation seldom produces.
    let Some(mut asked) = question(7, NAME) else { return };
    asked[2] |= 0x80;
    asked[7] = bytes.first().copied().unwrap_or_default();
    asked.extend(bytes.iter().skip(1));
    if let Some(SrvResponse::Services(services)) = answer(7, NAME, &asked) {
        assert!(services.len() <= 256);
    }
});
