//! The interoperability scenario with BIRD 2.

use crate::place::{NamespaceDaemon, NamespaceExt, TestNamespace, pair, path};
use crate::story::{ASN, InteropRouter, PASSWORD, THEIRS, tell};
use tempfile::TempDir;

pub struct BirdInteropRouter<'a> {
    namespace: &'a TestNamespace,
    dir: TempDir,
    daemon: Option<NamespaceDaemon>,
}

impl<'a> BirdInteropRouter<'a> {
    /// Starts BIRD with this configuration.
    pub fn start_with(namespace: &'a TestNamespace, config: &str) -> BirdInteropRouter<'a> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("bird.conf"), config).unwrap();
        let mut bird = BirdInteropRouter { namespace, dir, daemon: None };
        bird.start(&[]);
        bird
    }

    fn start(&mut self, extra: &[&str]) {
        let (config, socket) = (path(self.dir.path(), "bird.conf"), path(self.dir.path(), "bird.ctl"));
        let mut words = vec!["-f", "-c", &config, "-s", &socket];
        words.extend(extra);
        self.daemon = Some(NamespaceDaemon::start(self.namespace, "bird", &words));
    }

    /// Terminates BIRD in an orderly way.
    pub fn shut_down(&mut self) {
        self.birdc("down");
        self.daemon = None;
    }

    pub fn birdc(&self, command: &str) -> String {
        self.namespace.output("birdc", &["-s", &path(self.dir.path(), "bird.ctl"), command])
    }
}

impl InteropRouter for BirdInteropRouter<'_> {
    fn has(&self, prefix: &str) -> bool {
        self.birdc(&format!("show route {prefix}")).contains(prefix)
    }

    fn announce(&mut self) {
        self.birdc("enable static4");
        self.birdc("enable static6");
    }

    fn withdraw(&mut self) {
        self.birdc("disable static4");
        self.birdc("disable static6");
    }

    fn refresh(&mut self) -> bool {
        self.birdc("reload in ours4");
        self.birdc("reload in ours6");
        true
    }

    fn kill(&mut self) {
        self.daemon = None;
    }

    fn restart(&mut self) {
        self.start(&["-R"]);
    }

    fn announces_by_itself(&self) -> bool {
        true
    }
}

/// Starts BIRD with both sessions configured.
pub fn running(namespace: &TestNamespace) -> BirdInteropRouter<'_> {
    let [v4, v6] = THEIRS;
    let config = format!(
        "router id 10.77.0.2;
        protocol device {{ scan time 1; }}
        protocol direct {{ ipv4; ipv6; }}
        protocol static static4 {{ ipv4; route {v4} blackhole; }}
        protocol static static6 {{ ipv6; route {v6} blackhole; }}
        template bgp ours {{
          local as {ASN}; password \"{PASSWORD}\"; graceful restart on;
          connect delay time 1; connect retry time 1; error wait time 1, 2;
        }}
        protocol bgp ours4 from ours {{
          neighbor 10.77.0.1 as {ASN};
          ipv4 {{ import all; export where source = RTS_STATIC; }};
        }}
        protocol bgp ours6 from ours {{
          neighbor fd77::1 as {ASN};
          ipv6 {{ import all; export where source = RTS_STATIC; }};
        }}"
    );
    BirdInteropRouter::start_with(namespace, &config)
}

#[tokio::test(flavor = "multi_thread")]
async fn bird() {
    let (ours, theirs) = pair();
    tell(&ours, running(&theirs)).await;
}
