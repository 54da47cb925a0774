//! A sandbox for the commands of a page: network, processes and mounts are private, so that commands can be run
//! verbatim and nothing is left when it is dropped.

use std::io::{PipeReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Timeout of one command, generous for busy machines.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(300);
const DONE_MARKER: &str = "@@done ";
/// Path of the shared directory in the sandbox.
pub const SHARED_DIRECTORY: &str = "/mnt/product/shared";

/// Sets up the sandbox, then runs each NUL-terminated command from its standard input in the same shell.
const SANDBOX_SCRIPT: &str = r#"
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
for dir in etc opt var/lib; do
  part=/mnt/${dir//\//-}
  mkdir -p "$part/upper" "$part/work"
  mount -t overlay overlay -o "lowerdir=/$dir,upperdir=$part/upper,workdir=$part/work" "/$dir"
done
rm -rf /etc/calico /etc/cni /opt/cni /var/lib/tortie /var/lib/calico
# The repository may lie in a directory that is about to be hidden.
mkdir -p /mnt/product/examples /mnt/product/shared
touch /mnt/product/tortie
mount --bind "$TORTIE" /mnt/product/tortie
mount --bind "$EXAMPLES" /mnt/product/examples
mount --bind "$SHARED" /mnt/product/shared
if [ -e "$FETCHED_ENVOY" ]; then
  touch /mnt/product/envoy
  mount --bind "$FETCHED_ENVOY" /mnt/product/envoy
  export ENVOY=/mnt/product/envoy
fi
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
hostname host1
ip link set lo up
ip link add eth0 address 02:00:00:00:00:10 type bridge
sysctl -qw net.ipv6.conf.eth0.accept_dad=0
ip address add 192.0.2.10/24 dev eth0
ip address add 2001:db8::10/64 dev eth0
ip link set eth0 up
mkdir -p /run/bin /tmp/tour /tmp/steps
for name in tortie calicoctl; do ln -s /mnt/product/tortie "/run/bin/$name"; done
ln -s /mnt/product/examples /tmp/tour/examples
export PATH=/run/bin:$PATH HOME=/tmp/tour
unset TORTIE EXAMPLES SHARED FETCHED_ENVOY
cd /tmp/tour
set +e
exec 9<&0 </dev/null
status=0
number=0
while IFS= read -r -d '' __step <&9; do
  number=$((number + 1))
  printf '(exit %s)\n%s\n' "$status" "$__step" > "/tmp/steps/$number"
  . "/tmp/steps/$number"
  status=$?
  set +e
  printf '\n@@done %s\n' "$status"
done
"#;

/// Returns the path to which `scripts/envoy` fetches Envoy. Only one page needs it.
fn envoy_path() -> String {
    let script = crate::repository().join("scripts/envoy");
    tortie_testkit::run(Command::new(script).arg("where")).trim().to_owned()
}

#[derive(Debug)]
pub struct DocsSandbox {
    child: Child,
    input: ChildStdin,
    output: Receiver<Vec<u8>>,
    pending: Vec<u8>,
}

/// Result of a command.
#[derive(Clone, Debug)]
pub struct SandboxOutput {
    pub printed: String,
    /// `None` if the shell exited, as it does when a script fails.
    pub status: Option<i32>,
}

impl DocsSandbox {
    pub fn new() -> DocsSandbox {
        DocsSandbox::sharing(crate::repository())
    }

    /// Creates a sandbox that sees a directory of this machine as [`SHARED_DIRECTORY`].
    pub fn sharing(dir: &Path) -> DocsSandbox {
        let (reader, writer) = std::io::pipe().unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts", "--ipc"])
            .args(["bash", "--noprofile", "--norc", "-c", SANDBOX_SCRIPT])
            .env_clear()
            .env("PATH", format!("{path}:/usr/sbin:/sbin"))
            .env("LC_ALL", "C.UTF-8")
            .env("TORTIE", env!("CARGO_BIN_EXE_tortie"))
            .env("EXAMPLES", crate::repository().join("examples").canonicalize().unwrap())
            .env("SHARED", dir.canonicalize().unwrap())
            .env("FETCHED_ENVOY", envoy_path())
            .stdin(Stdio::piped())
            .stdout(writer.try_clone().unwrap())
            .stderr(writer);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("unshare: {error}"));
        // Dropping the command closes its ends of the pipe, so that the exit of the shell is noticed.
        drop(command);
        let input = child.stdin.take().unwrap();
        let (sender, output) = channel();
        std::thread::spawn(move || copy(reader, &sender));
        let mut sandbox = DocsSandbox { child, input, output, pending: Vec::new() };
        let ran = sandbox.run("true", false);
        assert_eq!(
            ran.status,
            Some(0),
            "no machine for the commands (tests with namespaces need root): {ran:?}"
        );
        sandbox
    }

    pub fn run(&mut self, command: &str, is_script: bool) -> SandboxOutput {
        let head = if is_script { "set -e\n" } else { "" };
        // Writing to a shell that has exited fails; its last output gives the reason.
        let _ = self.input.write_all(format!("{head}{command}\0").as_bytes());
        let _ = self.input.flush();
        loop {
            if let Some(ran) = self.finished() {
                return ran;
            }
            match self.output.recv_timeout(COMMAND_TIMEOUT) {
                Ok(bytes) => self.pending.extend(bytes),
                Err(RecvTimeoutError::Disconnected) => {
                    let printed = String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned();
                    return SandboxOutput { printed, status: None };
                }
                Err(RecvTimeoutError::Timeout) => {
                    panic!(
                        "not within {COMMAND_TIMEOUT:?}: {command}\n{}",
                        String::from_utf8_lossy(&self.pending)
                    )
                }
            }
        }
    }

    /// Returns the output up to the marker once the marker has arrived.
    fn finished(&mut self) -> Option<SandboxOutput> {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        let start = text.find(&format!("\n{DONE_MARKER}"))?;
        let (printed, rest) = text.split_at(start);
        let line = rest.strip_prefix('\n')?.strip_prefix(DONE_MARKER)?;
        let (status, after) = line.split_once('\n')?;
        self.pending = after.as_bytes().to_vec();
        Some(SandboxOutput { printed: printed.to_owned(), status: status.parse().ok() })
    }
}

impl Drop for DocsSandbox {
    fn drop(&mut self) {
        // `unshare --kill-child` kills its child, the first process of the PID namespace; all others end with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn copy(mut reader: PipeReader, sender: &std::sync::mpsc::Sender<Vec<u8>>) {
    let mut buffer = [0; 4096];
    while let Ok(count) = reader.read(&mut buffer) {
        if count == 0 || sender.send(buffer[..count].to_vec()).is_err() {
            return;
        }
    }
}

#[test]
fn a_machine_of_its_own_that_leaves_nothing() {
    let mut sandbox = DocsSandbox::new();
    let ran = sandbox.run("touch /etc/calico-test /run/x; ip -br link; false", false);
    assert_eq!(ran.status, Some(1));
    assert!(ran.printed.contains("eth0"), "{ran:?}");
    assert_eq!(sandbox.run("echo $?", false).printed.trim(), "1", "the status is kept for the next command");
    assert_eq!(sandbox.run("x=1; ls /etc/calico-test", false).printed.trim(), "/etc/calico-test");
    assert_eq!(sandbox.run("echo \"x is $x\"", false).printed.trim(), "x is 1");
    let ran = sandbox.run("echo before\nfalse\necho after", true);
    assert_eq!((ran.printed.trim(), ran.status), ("before", None), "a script ends at its first failure");
    assert!(!std::path::Path::new("/etc/calico-test").exists());
}
