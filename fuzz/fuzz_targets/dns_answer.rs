//! Any bytes are an answer to our question, or none; whatever they point at, reading them ends.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tortie_store::backend::etcd::discovery::message::{Answer, answer, question};

const NAME: &str = "_etcd-client._tcp.example.com";

fuzz_target!(|bytes: &[u8]| {
    let _ = answer(7, NAME, bytes);
    // The same as an answer to what we asked, which a mutated header would seldom be.
    let Some(mut asked) = question(7, NAME) else { return };
    asked[2] |= 0x80;
    asked[7] = bytes.first().copied().unwrap_or_default();
    asked.extend(bytes.iter().skip(1));
    if let Some(Answer::Services(services)) = answer(7, NAME, &asked) {
        assert!(services.len() <= 256);
    }
});
