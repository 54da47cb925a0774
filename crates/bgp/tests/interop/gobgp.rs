//! The interoperability scenario with GoBGP.

use crate::place::{NamespaceDaemon, NamespaceExt, TestNamespace, pair, path};
use crate::story::{ASN, InteropRouter, PASSWORD, THEIRS, tell};
use tempfile::TempDir;

pub struct GobgpRouter<'a> {
    namespace: &'a TestNamespace,
    dir: TempDir,
    daemon: Option<NamespaceDaemon>,
}

impl GobgpRouter<'_> {
    fn start(&mut self, extra: &[&str]) {
        let config = path(self.dir.path(), "gobgpd.toml");
        let mut words = vec!["-f", &config, "--pprof-disable"];
        words.extend(extra);
        self.daemon = Some(NamespaceDaemon::start(self.namespace, "gobgpd", &words));
    }

    fn gobgp(&self, words: &str) -> String {
        self.namespace.output("gobgp", &words.split_whitespace().collect::<Vec<_>>())
    }

    fn rib(&self, verb: &str) {
        for (family, prefix) in ["ipv4", "ipv6"].into_iter().zip(THEIRS) {
            self.gobgp(&format!("global rib -a {family} {verb} {prefix}"));
        }
    }
}

impl InteropRouter for GobgpRouter<'_> {
    fn has(&self, prefix: &str) -> bool {
        let family = if prefix.contains(':') { "ipv6" } else { "ipv4" };
        self.gobgp(&format!("global rib -a {family} {prefix}")).contains(&format!("{prefix} "))
    }

    fn announce(&mut self) {
        self.rib("add");
    }

    fn withdraw(&mut self) {
        self.rib("del");
    }

    fn refresh(&mut self) -> bool {
        // GoBGP keeps the received routes and never requests a refresh.
        false
    }

    fn kill(&mut self) {
        self.daemon = None;
    }

    fn restart(&mut self) {
        self.start(&["-r"]);
    }

    fn announces_by_itself(&self) -> bool {
        // Its routes are added through its API and do not survive a restart.
        false
    }
}

/// Starts GoBGP with both sessions configured.
pub fn running(namespace: &TestNamespace) -> GobgpRouter<'_> {
    let dir = tempfile::tempdir().unwrap();
    let neighbour = |address: &str, family: &str| {
        format!(
            "[[neighbors]]
            [neighbors.config]
            neighbor-address = \"{address}\"
            peer-as = {ASN}
            auth-password = \"{PASSWORD}\"
            [neighbors.timers.config]
            connect-retry = 1
            idle-hold-time-after-reset = 1
            [neighbors.graceful-restart.config]
            enabled = true
            restart-time = 60
            deferral-time = 5
            [[neighbors.afi-safis]]
            [neighbors.afi-safis.config]
            afi-safi-name = \"{family}-unicast\"
            [neighbors.afi-safis.mp-graceful-restart.config]
            enabled = true\n"
        )
    };
    let config = [
        format!("[global.config]\nas = {ASN}\nrouter-id = \"10.77.0.2\"\n"),
        neighbour("10.77.0.1", "ipv4"),
        neighbour("fd77::1", "ipv6"),
    ];
    std::fs::write(dir.path().join("gobgpd.toml"), config.concat()).unwrap();
    let mut gobgp = GobgpRouter { namespace, dir, daemon: None };
    gobgp.start(&[]);
    gobgp
}

#[tokio::test(flavor = "multi_thread")]
async fn gobgp() {
    let (ours, theirs) = pair();
    tell(&ours, running(&theirs)).await;
}
