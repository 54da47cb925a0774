//! The interoperability scenario with FRR's bgpd, without zebra: learnt routes stay in its own table.

use crate::place::{NamespaceDaemon, NamespaceExt, TestNamespace, pair, path};
use crate::story::{ASN, InteropRouter, PASSWORD, THEIRS, tell};
use tempfile::TempDir;

pub struct FrrRouter<'a> {
    namespace: &'a TestNamespace,
    dir: TempDir,
    daemon: Option<NamespaceDaemon>,
}

impl FrrRouter<'_> {
    fn start(&mut self) {
        let (config, pid) = (path(self.dir.path(), "bgpd.conf"), path(self.dir.path(), "bgpd.pid"));
        let dir = path(self.dir.path(), "");
        let words = ["-Z", "-S", "-f", &config, "-i", &pid, "--vty_socket", &dir, "-P", "0"];
        self.daemon = Some(NamespaceDaemon::start(self.namespace, "/usr/lib/frr/bgpd", &words));
    }

    fn vtysh(&self, commands: &[&str]) -> String {
        let dir = path(self.dir.path(), "");
        let mut words = vec!["--vty_socket", &dir];
        commands.iter().for_each(|command| words.extend(["-c", command]));
        self.namespace.output("vtysh", &words)
    }

    fn networks(&self, word: &str) {
        for (family, prefix) in ["ipv4", "ipv6"].into_iter().zip(THEIRS) {
            self.vtysh(&[
                "configure terminal",
                &format!("router bgp {ASN}"),
                &format!("address-family {family} unicast"),
                &format!("{word}network {prefix}"),
            ]);
        }
    }
}

impl InteropRouter for FrrRouter<'_> {
    fn has(&self, prefix: &str) -> bool {
        let family = if prefix.contains(':') { "ipv6" } else { "ipv4" };
        self.vtysh(&[&format!("show bgp {family} unicast {prefix} json")]).contains("\"paths\"")
    }

    fn announce(&mut self) {
        self.networks("");
    }

    fn withdraw(&mut self) {
        self.networks("no ");
    }

    fn refresh(&mut self) -> bool {
        self.vtysh(&["clear bgp ipv4 unicast 10.77.0.1 soft in"]);
        self.vtysh(&["clear bgp ipv6 unicast fd77::1 soft in"]);
        true
    }

    fn kill(&mut self) {
        self.daemon = None;
    }

    fn restart(&mut self) {
        self.start();
    }

    fn announces_by_itself(&self) -> bool {
        true
    }
}

/// Starts FRR with both sessions configured.
pub fn running(namespace: &TestNamespace) -> FrrRouter<'_> {
    let dir = tempfile::tempdir().unwrap();
    let neighbour = |address: &str| {
        format!(
            " neighbor {address} remote-as {ASN}\n neighbor {address} password {PASSWORD}\n \
             neighbor {address} timers connect 1\n"
        )
    };
    let family = |family: &str, address: &str, prefix: &str| {
        format!(
            " address-family {family} unicast\n  neighbor {address} activate\n  network {prefix}\n \
             exit-address-family\n"
        )
    };
    let config = [
        format!("router bgp {ASN}\n bgp router-id 10.77.0.2\n no bgp default ipv4-unicast\n"),
        " no bgp network import-check\n bgp graceful-restart\n".to_owned(),
        " bgp graceful-restart preserve-fw-state\n".to_owned(),
        neighbour("10.77.0.1"),
        neighbour("fd77::1"),
        family("ipv4", "10.77.0.1", THEIRS[0]),
        family("ipv6", "fd77::1", THEIRS[1]),
    ];
    std::fs::write(dir.path().join("bgpd.conf"), config.concat()).unwrap();
    let mut frr = FrrRouter { namespace, dir, daemon: None };
    frr.start();
    frr
}

#[tokio::test(flavor = "multi_thread")]
async fn frr() {
    let (ours, theirs) = pair();
    tell(&ours, running(&theirs)).await;
}
