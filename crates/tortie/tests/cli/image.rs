//! The image of the binary (`make image`), read by other programs that handle OCI images. containerd reads it in every
//! Kubernetes lab.

use serde_json::Value;
use std::path::Path;
use std::process::Command;
use tortie_testkit::run;

const TORTIE: &str = env!("CARGO_BIN_EXE_tortie");
const IMAGE_NAME: &str = "localhost/tortie:latest";

/// Builds a podman command whose storage is in a directory.
fn podman(dir: &Path) -> Command {
    let mut command = Command::new("podman");
    command.args(["--storage-driver", "vfs"]);
    for (option, name) in [("--root", "root"), ("--runroot", "run"), ("--tmpdir", "tmp")] {
        command.arg(option).arg(dir.join(name));
    }
    command
}

#[test]
fn skopeo_and_podman_read_the_image() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("image.tar");
    run(Command::new(TORTIE).args(["lab", "image", "--output"]).arg(&file));
    let source = format!("oci-archive:{}", file.display());
    let shown: Value = serde_json::from_str(&run(Command::new("skopeo").args(["inspect", &source]))).unwrap();
    assert_eq!((&shown["Os"], shown["Layers"].as_array().map(Vec::len)), (&Value::from("linux"), Some(1)));
    // podman verifies the digests of all blobs.
    run(podman(dir.path()).args(["load", "--input"]).arg(&file));
    let loaded = run(podman(dir.path()).args(["image", "inspect", IMAGE_NAME]));
    let loaded: Value = serde_json::from_str(&loaded).unwrap();
    assert_eq!(loaded[0]["Config"]["Entrypoint"], serde_json::json!(["/usr/bin/tortie"]));
}
