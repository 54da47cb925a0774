//! `tortie up` on a machine with systemd: a real systemd runs as the first process of separate namespaces.

use crate::world::TORTIE;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use tortie_testkit::{eventually, eventually_showing};

/// Sets up the machine and becomes systemd. No service of the host is started, and only the network sysctls, which
/// belong to this network namespace, can be changed.
const MACHINE_SCRIPT: &str = r#"
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
for dir in etc opt var; do
  mkdir -p "/mnt/$dir/upper" "/mnt/$dir/work"
  mount -t overlay overlay -o "lowerdir=/$dir,upperdir=/mnt/$dir/upper,workdir=/mnt/$dir/work" "/$dir"
done
rm -rf /etc/calico /etc/cni /opt/cni /var/lib/tortie /var/lib/calico /etc/systemd/system/*
for dir in /usr/lib/systemd/system/*.wants /usr/lib/systemd/system-generators; do mount -t tmpfs tmpfs "$dir"; done
mkdir /mnt/net
mount --bind /proc/sys/net /mnt/net
mount --bind /proc/sys /proc/sys
mount -o remount,ro,bind /proc/sys
mount --bind /mnt/net /proc/sys/net
mount -t tmpfs tmpfs /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
printf '[Unit]\nDefaultDependencies=no\nWants=systemd-journald.service\n' > /etc/systemd/system/test.target
hostname host1
ip link set lo up
ip link add eth0 address 02:00:00:00:00:10 type bridge
ip address add 192.0.2.10/24 dev eth0
ip link set eth0 up
exec env -i container=tortie-test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --unit=test.target
"#;

/// Moves the machine into its own cgroup, wherever this machine has mounted cgroup2, if at all.
const ENTER_SCRIPT: &str = r#"
set -e
mount --make-rprivate /
mount -t cgroup2 cgroup2 /mnt
mkdir "/mnt/$0"
echo $$ > "/mnt/$0/cgroup.procs"
umount /mnt
exec unshare --cgroup --net --uts --ipc --pid --fork --kill-child --mount --mount-proc bash --noprofile --norc -c "$1"
"#;
const LEAVE_SCRIPT: &str = r#"
mount --make-rprivate /
mount -t cgroup2 cgroup2 /mnt && find "/mnt/$0" -depth -type d -delete
"#;

struct SystemdMachine {
    unshare: Child,
    group: String,
}

impl SystemdMachine {
    fn start() -> SystemdMachine {
        let group = format!("tortie-test-{}", std::process::id());
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", ENTER_SCRIPT, &group, MACHINE_SCRIPT]);
        let unshare = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let machine = SystemdMachine { unshare, group };
        eventually_showing(
            "systemd has started",
            || machine.systemctl(&["is-active", "test.target"]) == "active",
            || machine.systemctl(&["status"]),
        );
        machine
    }

    /// Returns the first process of the machine, if it exists.
    fn init(&self) -> Option<String> {
        let unshare = self.unshare.id();
        let children = std::fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children")).ok()?;
        children.split_whitespace().next().map(str::to_owned)
    }

    fn output(&self, words: &[&str]) -> Output {
        let init = self.init().unwrap_or_default();
        let mut command = Command::new("nsenter");
        command
            .args(["-t", &init, "--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup", "--"])
            .args(words);
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", "/root")
            .output()
            .unwrap()
    }

    /// Returns the output of systemctl, regardless of its exit status.
    fn systemctl(&self, words: &[&str]) -> String {
        let output = self.output(&[&["systemctl", "--no-pager"], words].concat());
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Runs a command that must succeed and returns its output.
    fn run(&self, words: &[&str]) -> String {
        let output = self.output(words);
        assert!(output.status.success(), "{words:?}: {output:?}\n{}", self.systemctl(&["status"]));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn process(&self, unit: &str) -> String {
        self.systemctl(&["show", "--property=MainPID", "--value", unit])
    }
}

impl Drop for SystemdMachine {
    fn drop(&mut self) {
        // All processes of a PID namespace end with its first process.
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
        // The last processes may still be exiting.
        for _ in 0..50 {
            let mut leave = Command::new("unshare");
            leave.args(["--mount", "sh", "-c", LEAVE_SCRIPT, &self.group]).stderr(Stdio::null());
            if leave.status().is_ok_and(|status| status.success()) {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[test]
fn systemd_keeps_the_daemons_and_down_ends_them() {
    let machine = SystemdMachine::start();
    let units = ["tortie-datastore.service", "tortie-node.service"];
    let said = machine.run(&[TORTIE, "up"]);
    assert!(said.contains("this host is a node"), "{said}");
    let healthy = || machine.output(&[TORTIE, "health"]).status.success();
    for unit in units {
        assert_eq!(machine.systemctl(&["is-active", unit]), "active");
        assert_eq!(machine.systemctl(&["is-enabled", unit]), "enabled", "it comes back after a reboot");
    }
    eventually("the node is healthy", healthy);
    let log = machine.run(&["journalctl", "--no-pager", "--unit", units[1]]);
    assert!(log.contains("ready"), "{log}");

    for unit in units {
        let first = machine.process(unit);
        machine.run(&["systemctl", "kill", "--signal=KILL", unit]);
        eventually(&format!("{unit} is started again"), || {
            let second = machine.process(unit);
            second != first && second != "0" && machine.systemctl(&["is-active", unit]) == "active"
        });
    }
    eventually("the node is healthy again", healthy);

    let said = machine.run(&[TORTIE, "down", "--purge"]);
    assert!(said.contains("no longer a node"), "{said}");
    for unit in units {
        assert_eq!(machine.systemctl(&["is-active", unit]), "inactive");
        assert_eq!(machine.systemctl(&["list-unit-files", "--no-legend", unit]), "");
    }
    assert!(
        !machine.output(&["pgrep", "-f", "tortie (node|datastore)"]).status.success(),
        "a daemon still runs"
    );
}
