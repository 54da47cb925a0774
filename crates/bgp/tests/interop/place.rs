//! Two network namespaces with a cable between them, and processes in them. All of it goes away with the test.

use std::path::Path;
use tortie_bgp::Sockets;
use tortie_dataplane::Netns;
use tortie_testkit::Process;

pub use tortie_testkit::{Namespace, eventually_async as eventually};

/// `10.77.0.1` and `fd77::1` here, `10.77.0.2` and `fd77::2` there.
pub fn pair() -> (Namespace, Namespace) {
    Namespace::pair([10, 77, 0, 0].into(), "fd77::".parse().unwrap())
}

/// What these tests need of a namespace besides.
pub trait Host {
    /// Where a speaker in this namespace makes its sockets.
    fn sockets(&self) -> Sockets;

    /// What a command prints; also when it fails, because a daemon that is not ready yet makes it fail.
    fn output(&self, program: &str, words: &[&str]) -> String;
}

impl Host for Namespace {
    fn sockets(&self) -> Sockets {
        let netns = Netns::open(self.path()).unwrap();
        Sockets::inside(move |make| netns.run(make).map_err(std::io::Error::other)?)
    }

    fn output(&self, program: &str, words: &[&str]) -> String {
        let output = self.command(program).args(words).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    }
}

/// A daemon in a namespace with a directory of its own; killed when dropped.
pub struct Daemon {
    process: Option<Process>,
}

impl Daemon {
    pub fn start(namespace: &Namespace, program: &str, words: &[&str]) -> Daemon {
        Daemon { process: Some(Process::quiet(namespace.command(program).args(words))) }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let Some(process) = self.process.take() else { return };
        let pid = process.id();
        drop(process);
        // FRR keeps a directory for each process it ever was.
        let _ = std::fs::remove_dir_all(format!("/var/tmp/frr/bgpd.{pid}"));
    }
}

/// The name of a file in a directory, as text.
pub fn path(dir: &Path, name: &str) -> String {
    dir.join(name).to_str().unwrap().to_owned()
}
