//! Builds the initramfs of a guest: programs and their libraries at the paths they have on the host, kernel modules,
//! and the init script.

use super::cpio::CpioArchive;
use super::modules::KernelModules;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Init script: mounts the file systems that programs expect, loads the modules, runs the command and powers the
/// machine off.
const INIT_SCRIPT: &str = r#"#!/busybox/busybox sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin:/busybox HOME=/root
/busybox/busybox --install -s /busybox
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /run
ln -s /run /var/run
hostname guest
ip link set lo up
while read -r module; do insmod "/modules/$module.ko" || echo "guest: $module is not loaded"; done </modules/order
echo "guest: up after $(cut -d' ' -f1 /proc/uptime) s"
# Keep standard error out of the test results on the serial line.
/command 2>/tmp/complaints
code=$?
if [ -f /tmp/figures ]; then cat /tmp/figures; fi
if [ $code != 0 ]; then tail -n 100 /tmp/complaints; dmesg | tail -n 40; fi
echo "guest: exit $code after $(cut -d' ' -f1 /proc/uptime) s"
reboot -f
"#;

/// File to which tests append figures; `INIT_SCRIPT` prints it.
pub(super) const FIGURES_FILE: &str = "/tmp/figures";

/// Contents of /etc/protocols.
const ETC_PROTOCOLS: &str = "icmp 1\nipencap 4\ntcp 6\nudp 17\nipv6-icmp 58\nsctp 132\nudplite 136\n";

/// Contents of /etc/iproute2/rt_protos: the names that `ip` shows for route protocols.
const RT_PROTOS: &str = "2 kernel\n3 boot\n4 static\n12 bird\n";

/// Directories that programs expect to exist.
const GUEST_DIRECTORIES: [&str; 8] = ["/proc", "/sys", "/dev", "/run", "/tmp", "/root", "/var/lib", "/etc"];

#[derive(Debug, Default)]
pub struct InitramfsBuilder {
    files: BTreeMap<PathBuf, Vec<u8>>,
    modules: Vec<String>,
}

impl InitramfsBuilder {
    /// Adds a program of the host, given by name or path, with its libraries. Paths in the guest are the same as on the
    /// host.
    pub fn program(&mut self, program: &str) {
        let path = found(program);
        for library in libraries(&path) {
            let contents = read(&library);
            self.files.entry(library).or_insert(contents);
        }
        self.files.insert(path.clone(), stripped(&path));
    }

    pub fn file(&mut self, path: &str, contents: impl Into<Vec<u8>>) {
        self.files.insert(path.into(), contents.into());
    }

    /// Adds kernel modules and their dependencies.
    pub fn modules(&mut self, modules: &KernelModules, wanted: &[&str]) {
        for (name, contents) in modules.in_order(wanted) {
            self.files.insert(format!("/modules/{name}.ko").into(), contents);
            self.modules.push(name);
        }
    }

    /// Returns the archive. `command` is a shell script that the guest runs.
    pub fn finish(mut self, command: &str) -> Vec<u8> {
        let order: String = self.modules.iter().map(|module| format!("{module}\n")).collect();
        self.file("/modules/order", order);
        self.file("/init", INIT_SCRIPT);
        self.file("/etc/protocols", ETC_PROTOCOLS);
        self.file("/etc/iproute2/rt_protos", RT_PROTOS);
        self.file("/command", format!("#!/busybox/busybox sh\n{command}\n"));
        self.file("/busybox/busybox", read(&found("busybox")));
        let mut archive = CpioArchive::default();
        let mut made = BTreeSet::new();
        let expected = GUEST_DIRECTORIES.iter().map(|path| Path::new(path).join("x"));
        let paths: Vec<PathBuf> = expected.chain(self.files.keys().cloned()).collect();
        for path in &paths {
            let mut parents: Vec<&Path> = path.ancestors().skip(1).collect();
            parents.reverse();
            for parent in parents.into_iter().filter(|parent| *parent != Path::new("/")) {
                if made.insert(parent.to_owned()) {
                    archive.directory(&parent.to_string_lossy());
                }
            }
        }
        // The kernel opens the console before devtmpfs is mounted.
        archive.device("/dev/console", 5, 1);
        for (path, contents) in &self.files {
            archive.file(&path.to_string_lossy(), contents);
        }
        archive.finish()
    }
}

/// Returns the path of a program. Panics if it is not installed.
fn found(program: &str) -> PathBuf {
    if program.starts_with('/') {
        return program.into();
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let dirs = path.split(':').chain(["/usr/sbin", "/usr/bin", "/sbin", "/bin"]);
    let mut places = dirs.map(|dir| Path::new(dir).join(program));
    places
        .find(|place| place.is_file())
        .unwrap_or_else(|| panic!("{program} is not installed here; run make setup"))
}

/// Returns the shared libraries of a program; empty for a static binary.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let output = Command::new("ldd").arg(program).output().unwrap_or_else(|error| panic!("ldd: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!text.contains("not found"), "{}: {text}", program.display());
    let words = text.lines().flat_map(str::split_whitespace);
    words
        .filter(|word| word.starts_with('/'))
        .map(|word| PathBuf::from(word.trim_end_matches(':')))
        .filter(|path| path != program)
        .collect()
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns a program without debug information, which is most of the size of a test binary.
fn stripped(program: &Path) -> Vec<u8> {
    let dir = tempfile::tempdir().expect("there is room for temporary files");
    let smaller = dir.path().join("program");
    let output = Command::new("strip").arg("-o").arg(&smaller).arg(program).output();
    match output {
        Ok(output) if output.status.success() => read(&smaller),
        _ => read(program),
    }
}
