//! Network namespaces that are removed when the test ends, with helpers that run command line tools in them.

use serde_json::Value;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

static NEXT_NAMESPACE_NUMBER: AtomicU32 = AtomicU32::new(0);

/// A namespace created by `ip netns add` with its loopback up. Dropping it removes the namespace, also during a panic.
#[derive(Debug)]
pub struct TestNamespace {
    name: String,
}

/// Arguments of a command line: `"link set lo up"` or `["link", "set", "lo", "up"]`.
pub trait CommandArguments {
    fn words(&self) -> Vec<&str>;
}

impl CommandArguments for str {
    fn words(&self) -> Vec<&str> {
        self.split_whitespace().collect()
    }
}

impl CommandArguments for String {
    fn words(&self) -> Vec<&str> {
        self.split_whitespace().collect()
    }
}

impl CommandArguments for [&str] {
    fn words(&self) -> Vec<&str> {
        self.to_vec()
    }
}

impl CommandArguments for Vec<&str> {
    fn words(&self) -> Vec<&str> {
        self.clone()
    }
}

impl<const N: usize> CommandArguments for [&str; N] {
    fn words(&self) -> Vec<&str> {
        self.to_vec()
    }
}

impl TestNamespace {
    /// Creates a namespace. `what` becomes part of its name, to identify it in `ip netns`.
    pub fn new(what: &str) -> TestNamespace {
        let number = NEXT_NAMESPACE_NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tortie-test-{}-{number}-{what}", std::process::id());
        run(Command::new("ip").args(["netns", "add", &name]));
        let namespace = TestNamespace { name };
        namespace.ip("link set lo up");
        namespace
    }

    /// Creates two namespaces connected by a veth pair, `eth0` on both ends. The first gets address 1 and the second
    /// address 2 of the /24 and the /64 that contain the given addresses.
    pub fn pair(v4: Ipv4Addr, v6: Ipv6Addr) -> (TestNamespace, TestNamespace) {
        let pair = (TestNamespace::new("one"), TestNamespace::new("two"));
        pair.0.ip(&format!("link add eth0 type veth peer name eth0 netns {}", pair.1.name));
        let [a, b, c, _] = v4.octets();
        let prefix = u128::from(v6) & !u128::from(u64::MAX);
        for (namespace, number) in [(&pair.0, 1_u8), (&pair.1, 2)] {
            namespace.exec("sysctl -qw net.ipv6.conf.eth0.accept_dad=0");
            namespace.ip(&format!("addr add {a}.{b}.{c}.{number}/24 dev eth0"));
            let v6 = Ipv6Addr::from(prefix | u128::from(number));
            namespace.ip(&format!("addr add {v6}/64 dev eth0 nodad"));
            namespace.ip("link set eth0 up");
        }
        pair
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn path(&self) -> String {
        format!("/run/netns/{}", self.name)
    }

    /// Builds a command that runs in the namespace. `ip netns exec` calls exec, so the process id is that of the
    /// program.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// Runs a command that must succeed and returns its output.
    pub fn exec(&self, words: &(impl CommandArguments + ?Sized)) -> String {
        let words = words.words();
        run(self.command(words[0]).args(&words[1..]))
    }

    pub fn try_exec(&self, words: &(impl CommandArguments + ?Sized)) -> Output {
        let words = words.words();
        self.command(words[0]).args(&words[1..]).output().unwrap()
    }

    /// Runs `ip WORDS...`, which must succeed.
    pub fn ip(&self, words: &(impl CommandArguments + ?Sized)) -> String {
        run(Command::new("ip").args(["-n", &self.name]).args(words.words()))
    }

    pub fn try_ip(&self, words: &(impl CommandArguments + ?Sized)) -> Output {
        Command::new("ip").args(["-n", &self.name]).args(words.words()).output().unwrap()
    }

    /// Runs `ip -j -d WORDS...` and returns the parsed output.
    pub fn json(&self, words: &str) -> Vec<Value> {
        let text = self.ip(&format!("-j -d {words}"));
        if text.trim().is_empty() { Vec::new() } else { serde_json::from_str(&text).unwrap() }
    }

    pub fn has_link(&self, name: &str) -> bool {
        self.try_ip(&["link", "show", "dev", name]).status.success()
    }

    /// Returns the lines of `ip route` for a destination of either family.
    pub fn routes(&self, destination: &str) -> Vec<String> {
        let family = if destination.contains(':') { "-6" } else { "-4" };
        let text = self.ip(&[family, "-d", "route", "show", "exact", destination]);
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    pub fn sysctl(&self, key: &str) -> String {
        self.exec(&["cat", &format!("/proc/sys/{key}")]).trim().to_owned()
    }

    /// Feeds commands to `nft -f -`, which must succeed.
    pub fn nft(&self, commands: &str) {
        let output = crate::output(self.command("nft").args(["-f", "-"]), commands);
        assert!(output.status.success(), "{commands}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Reports whether the address responds to ping. Sends two requests, since a busy machine may lose one, and not
    /// more, since a negative result takes the full time.
    pub fn reaches(&self, address: &str) -> bool {
        self.try_exec(&["ping", "-n", "-c", "1", "-w", "2", address]).status.success()
    }

    pub fn pings(&self, address: &str) -> bool {
        self.try_exec(&["ping", "-c", "1", "-W", "5", address]).status.success()
    }
}

impl Drop for TestNamespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).output();
    }
}

/// Builds a command that runs in `namespace`, or in the current network namespace if that is `None`.
pub fn namespace_command(namespace: Option<&str>, program: impl AsRef<Path>) -> Command {
    match namespace {
        None => Command::new(program.as_ref()),
        Some(namespace) => {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", namespace]).arg(program.as_ref());
            command
        }
    }
}

/// Runs a command that must succeed and returns its output. Otherwise the test fails with the output of the command.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?} failed (tests with namespaces need root and iproute2): {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_connected_and_gone_when_dropped() {
        let (one, two) = TestNamespace::pair([10, 1, 2, 0].into(), "fd12::".parse().unwrap());
        assert!(one.pings("10.1.2.2") && two.pings("fd12::1"));
        assert_eq!(one.routes("10.1.2.0/24").len(), 1);
        let path = std::path::PathBuf::from(one.path());
        assert!(path.exists());
        drop(one);
        assert!(!path.exists());
        crate::eventually("the other end of the cable goes with the first", || !two.has_link("eth0"));
    }
}
