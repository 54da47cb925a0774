//! Builds the Debian package and lets dpkg install and remove it in a sandbox.

use crate::repository;
use crate::sandbox::{DocsSandbox, SHARED_DIRECTORY};
use std::path::Path;
use std::process::Command;

/// Runs a command that must succeed and returns its output.
fn must(sandbox: &mut DocsSandbox, command: &str) -> String {
    let ran = sandbox.run(command, false);
    assert_eq!(ran.status, Some(0), "{command}: {}", ran.printed);
    ran.printed.trim().to_owned()
}

/// Returns the paths of files with an extension below a directory of the repository, relative to its root.
fn files_below(dir: &Path, extension: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut pending = vec![dir.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in std::fs::read_dir(repository().join(&dir)).unwrap() {
            let path = dir.join(entry.unwrap().file_name());
            if repository().join(&path).is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path.display().to_string());
            }
        }
    }
    found
}

#[test]
fn the_package_is_installed_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let built = Command::new(repository().join("scripts/deb"))
        .arg(env!("CARGO_BIN_EXE_tortie"))
        .arg(dir.path())
        // Faster at the cost of a larger package.
        .env("DEB_COMPRESSION", "1")
        .output()
        .unwrap();
    assert!(built.status.success(), "{built:?}");
    let package = std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().file_name();

    let mut sandbox = DocsSandbox::sharing(dir.path());
    // The overlay keeps the machine's own /usr unchanged.
    must(
        &mut sandbox,
        "mkdir -p /mnt/usr/upper /mnt/usr/work && mount -t overlay overlay -o lowerdir=/usr,upperdir=/mnt/usr/upper,workdir=/mnt/usr/work /usr",
    );
    must(&mut sandbox, "export PATH=/usr/sbin:/usr/bin:/sbin:/bin; hash -r; ! command -v tortie");
    must(&mut sandbox, &format!("cp {SHARED_DIRECTORY}/{} tortie.deb", package.display()));
    must(&mut sandbox, "dpkg -i tortie.deb");
    assert!(must(&mut sandbox, "dpkg -s tortie").contains("Status: install ok installed"));
    assert!(must(&mut sandbox, "tortie --version").starts_with("tortie "));
    assert!(must(&mut sandbox, "calicoctl version --client").contains("Client Version:"));
    for file in [
        "/usr/share/man/man1/tortie.1.gz",
        "/usr/share/man/man1/tortie-lab-up.1.gz",
        "/usr/share/man/man1/calicoctl.1.gz",
        "/usr/share/bash-completion/completions/tortie",
        "/usr/share/bash-completion/completions/calicoctl",
        "/usr/share/zsh/vendor-completions/_tortie",
        "/usr/share/fish/vendor_completions.d/calicoctl.fish",
        "/lib/systemd/system/tortie-node.service",
        "/lib/systemd/system/tortie-datastore.service",
    ] {
        must(&mut sandbox, &format!("test -s {file}"));
    }
    // Every page and every example of the repository is installed, and the examples are valid.
    for (dir, extension) in [("docs", "md"), ("docs", "svg"), ("docs", "png"), ("examples", "yaml")] {
        let files = files_below(Path::new(dir), extension);
        assert!(!files.is_empty(), "{dir}: no file ends in .{extension}");
        let missing =
            format!("cd /usr/share/doc/tortie; for f in {}; do test -s $f || echo $f; done", files.join(" "));
        assert_eq!(must(&mut sandbox, &format!("({missing})")), "");
    }
    must(&mut sandbox, "calicoctl validate -f /usr/share/doc/tortie/examples/quickstart/");
    let completed = "source /usr/share/bash-completion/completions/tortie; COMP_WORDS=(tortie ana); COMP_CWORD=1; _tortie tortie ana tortie; echo ${COMPREPLY[*]}";
    assert_eq!(must(&mut sandbox, completed), "analyze");

    // The package cannot be removed while the host is a node.
    must(&mut sandbox, "tortie up --service-manager own");
    let refused = sandbox.run("dpkg -r tortie", false);
    assert!(refused.status != Some(0) && refused.printed.contains("run `tortie down` first"), "{refused:?}");
    must(&mut sandbox, "tortie health; tortie down --purge");
    must(&mut sandbox, "dpkg -r tortie");
    let left = must(
        &mut sandbox,
        "hash -r; command -v tortie calicoctl; find /usr /lib/systemd -xdev -name '*tortie*' | grep -v '^/usr/lib/debug'; true",
    );
    assert_eq!(left, "");
    must(&mut sandbox, "dpkg -P tortie");
}
