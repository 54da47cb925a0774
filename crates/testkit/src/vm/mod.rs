//! A machine with another kernel, for what the running one lacks: QEMU without KVM, Debian's kernel, and an initramfs of
//! the tests' own binary, the programs and the modules they need. What a test prints comes back over the serial line.
//!
//! A test binary runs twice. On the host, each test waits for the one machine that runs them all and takes its own result
//! from there; in the guest, the same test does what it says.

mod cpio;
mod image;
mod machine;
mod modules;
mod results;

pub use image::Image;
pub use machine::Machine;
pub use results::Results;

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::OnceLock;

/// Set inside the guest.
const INSIDE: &str = "TORTIE_GUEST";

pub fn is_guest() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// A figure that a test in the guest has to tell. Shown on the host with the result of each test: what a test that
/// succeeds prints is not.
pub fn tell(figure: &str) {
    let mut file =
        OpenOptions::new().create(true).append(true).open(image::FIGURES).expect("the guest has room");
    writeln!(file, "guest: {figure}").expect("the guest has room");
}

/// Runs the body of a test in the guest; on the host, takes the result of that. `test` is `module_path!()` and the name.
pub fn in_guest(machine: fn() -> Machine, test: &str, body: impl FnOnce()) {
    static RESULTS: OnceLock<Results> = OnceLock::new();
    if is_guest() {
        return body();
    }
    // The harness knows tests without the name of the crate.
    let test = test.split_once("::").map_or(test, |(_, rest)| rest);
    let results = RESULTS.get_or_init(|| Results::read(&machine().run()));
    results.expect_success(test);
}

/// A test that runs in the guest of `machine`, a function that describes it.
#[macro_export]
macro_rules! guest_test {
    ($machine:path, $(#[$more:meta])* fn $name:ident() $body:block) => {
        #[test]
        $(#[$more])*
        fn $name() {
            $crate::vm::in_guest($machine, concat!(module_path!(), "::", stringify!($name)), || $body);
        }
    };
}
