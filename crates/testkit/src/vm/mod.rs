//! Runs tests in a virtual machine, for kernel features that the host lacks: QEMU without KVM, Debian's kernel, and an
//! initramfs with the test binary, the programs and the modules it needs. The output of the tests is read from the
//! serial line.
//!
//! A test binary runs twice. On the host, each test waits for the one machine that runs all of them and reports its
//! result; in the guest, the same test runs its body.

mod cpio;
mod image;
mod machine;
mod modules;
mod results;

pub use image::InitramfsBuilder;
pub use machine::GuestMachine;
pub use results::GuestResults;

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::OnceLock;

/// Environment variable that is set inside the guest.
const GUEST_ENV: &str = "TORTIE_GUEST";

pub fn is_guest() -> bool {
    std::env::var_os(GUEST_ENV).is_some()
}

/// Records a figure measured in the guest. The host prints it with the result of each test, since the harness does not
/// show the output of a successful test.
pub fn tell(figure: &str) {
    let mut file =
        OpenOptions::new().create(true).append(true).open(image::FIGURES_FILE).expect("the guest has room");
    writeln!(file, "guest: {figure}").expect("the guest has room");
}

/// Runs the body of a test in the guest; on the host, reports the result from the guest. `test` is `module_path!()` and
/// the name.
pub fn in_guest(machine: fn() -> GuestMachine, test: &str, body: impl FnOnce()) {
    static RESULTS: OnceLock<GuestResults> = OnceLock::new();
    if is_guest() {
        return body();
    }
    // The test harness reports names without the crate.
    let test = test.split_once("::").map_or(test, |(_, rest)| rest);
    let results = RESULTS.get_or_init(|| GuestResults::read(&machine().run()));
    results.expect_success(test);
}

/// Declares a test that runs in a guest. `$machine` is a function that returns the [`GuestMachine`](vm::Machine).
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
