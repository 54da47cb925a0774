//! Two connected network namespaces, and processes in them. Everything is removed at the end of the test.

use std::path::Path;
use tortie_bgp::SocketFactory;
use tortie_dataplane::Netns;
use tortie_testkit::TestProcess;

pub use tortie_testkit::{TestNamespace, eventually_async as eventually};

/// Creates two namespaces: `10.77.0.1` and `fd77::1` in the first, `10.77.0.2` and `fd77::2` in the second.
pub fn pair() -> (TestNamespace, TestNamespace) {
    TestNamespace::pair([10, 77, 0, 0].into(), "fd77::".parse().unwrap())
}

/// Additional operations on a namespace for these tests.
pub trait NamespaceExt {
    /// Returns the socket factory for a speaker in this namespace.
    fn sockets(&self) -> SocketFactory;

    /// Returns the output of a command, even if it fails: a daemon that is not ready yet makes it fail.
    fn output(&self, program: &str, words: &[&str]) -> String;
}

impl NamespaceExt for TestNamespace {
    fn sockets(&self) -> SocketFactory {
        let netns = Netns::open(self.path()).unwrap();
        SocketFactory::inside(move |make| netns.run(make).map_err(std::io::Error::other)?)
    }

    fn output(&self, program: &str, words: &[&str]) -> String {
        let output = self.command(program).args(words).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    }
}

/// A daemon in a namespace; killed when dropped.
pub struct NamespaceDaemon {
    process: Option<TestProcess>,
}

impl NamespaceDaemon {
    pub fn start(namespace: &TestNamespace, program: &str, words: &[&str]) -> NamespaceDaemon {
        NamespaceDaemon { process: Some(TestProcess::quiet(namespace.command(program).args(words))) }
    }
}

impl Drop for NamespaceDaemon {
    fn drop(&mut self) {
        let Some(process) = self.process.take() else { return };
        let pid = process.id();
        drop(process);
        // FRR leaves a directory behind for each process ID.
        let _ = std::fs::remove_dir_all(format!("/var/tmp/frr/bgpd.{pid}"));
    }
}

/// Returns the path of a file in a directory as text.
pub fn path(dir: &Path, name: &str) -> String {
    dir.join(name).to_str().unwrap().to_owned()
}
