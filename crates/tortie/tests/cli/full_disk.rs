//! A log that cannot be written does not stop a process: lines are dropped, counted and reported.

use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::process::Command;
use tortie_testkit::{TestProcess, eventually};

const TORTIE: &str = env!("CARGO_BIN_EXE_tortie");

/// A daemon that prints numbered lines and writes the count to another disk.
const DAEMON_SCRIPT: &str = "n=0; pad=$(printf %0400d 0); while true; do n=$((n+1)); echo line $n $pad; echo $n > \"$0\"; \
                      sleep 0.02; done";

#[test]
fn a_supervisor_outlives_a_full_log_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, count) = (dir.path().join("disk"), dir.path().join("count"));
    fs::create_dir(&disk).unwrap();
    let script = "mount -t tmpfs -o size=64k tmpfs \"$1\" && exec \"$2\" supervise --name noisy --log \"$1/log\" -- \
                  sh -c \"$3\" \"$4\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(&disk).args([TORTIE, DAEMON_SCRIPT]).arg(&count);
    let mut supervisor = TestProcess::quiet(&mut command);
    let printed =
        || fs::read_to_string(&count).ok().and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0);
    // The disk as mounted in the supervisor's mount namespace.
    let inside = std::path::PathBuf::from(format!("/proc/{}/root{}", supervisor.id(), disk.display()));
    let log = || fs::read_to_string(inside.join("log")).unwrap_or_default();
    eventually("the daemon logs", || log().contains("line 3 "));

    assert!(fs::write(inside.join("fill"), vec![0; 1 << 20]).is_err(), "the disk takes a megabyte");
    // More than fits in the last page of the log.
    let before = printed();
    eventually("the daemon goes on", || printed() > before + 60);
    assert!(!supervisor.ended());
    let full = log();
    let dropped = fs::read_to_string(inside.join("log.dropped")).unwrap();
    assert!(dropped.trim().parse::<u64>().unwrap() > 0, "{dropped}");
    fs::remove_file(inside.join("fill")).unwrap();
    eventually("the lost lines are reported", || log().contains("lines were dropped\n"));
    assert!(log().starts_with(&full), "what was there before is there");
    assert!(!supervisor.ended());
}

#[test]
fn a_daemon_outlives_its_output() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(TORTIE);
    command
        .args(["datastore", "--data-dir"])
        .arg(dir.path().join("data"))
        .arg("--listen")
        .arg(format!("unix://{}", socket.display()))
        .env("RUST_LOG", "debug")
        .stdout(full())
        .stderr(full());
    let mut datastore = TestProcess::start(&mut command);
    eventually("it serves", || {
        assert!(!datastore.ended());
        UnixStream::connect(&socket).is_ok()
    });
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(!datastore.ended());
}
