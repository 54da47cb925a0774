//! A host whose kernel was started with `ipv6.disable=1`: it has no IPv6 sockets.

use crate::world::{NodeFixture, eventually};
use serde_json::json;

/// Perl script that runs a program under a seccomp filter that rejects IPv6 sockets with the error of a kernel
/// without IPv6.
const NO_IPV6_SCRIPT: &str = r#"
    my ($arch) = (POSIX::uname())[4];
    my ($socket, $prctl) = $arch eq "aarch64" ? (198, 167) : (41, 157);
    my $program = join "", map { pack "SCCL", @$_ }
        [0x20, 0, 0, 0], [0x15, 0, 3, $socket], [0x20, 0, 0, 16], [0x15, 0, 1, 10], [0x06, 0, 0, 0x50000 | 97], [0x06, 0, 0, 0x7fff0000];
    my $filter = pack "Sx6P", 6, $program;
    syscall($prctl, 38, 1, 0, 0, 0) == 0 or die "no_new_privs: $!";
    syscall($prctl, 22, 2, $filter) == 0 or die "seccomp: $!";
    exec @ARGV or die "$ARGV[0]: $!";
"#;

#[test]
fn a_host_without_ipv6_is_a_node() {
    let mut world = NodeFixture::without_node("10.77.0.0/24");
    world.host.exec("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1");
    let refused =
        world.host.try_exec(&["perl", "-MPOSIX", "-e", NO_IPV6_SCRIPT, "ping", "-6", "-c", "1", "::1"]);
    assert!(!refused.status.success(), "no socket of IPv6 can be had");
    let by = ["perl", "-MPOSIX", "-e", NO_IPV6_SCRIPT];
    world.start_by(
        &by,
        &[
            ("FELIX_HEALTHENABLED", "true"),
            ("FELIX_HEALTHHOST", "0.0.0.0"),
            ("FELIX_PROMETHEUSMETRICSENABLED", "true"),
            ("FELIX_IPV6SUPPORT", "false"),
            ("IP6", "none"),
        ],
    );
    let get = |url: &str| {
        let output = world.host.try_exec(&["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", url]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    eventually("the node is ready", || get("http://127.0.0.1:9099/readiness") == "200");
    eventually("metrics are served", || get("http://127.0.0.1:9091/metrics") == "200");
    eventually("BGP listens", || world.host.exec("ss -ltn").contains("0.0.0.0:179"));
    let pod = world.container();
    let config = json!({
        "cniVersion": "1.1.0", "name": "net", "type": "calico",
        "tortie_socket": world.path("run/cni.sock"), "ipam": {"type": "calico-ipam"},
    });
    let added = world.must("ADD", "one", &pod.path(), &config);
    assert!(world.host.pings(&added.addresses()[0]), "{}", world.log());
}
