//! The image of the binary (`make image`), read by other programs that handle OCI images. containerd reads it in every
//! Kubernetes lab.

use serde_json::{Value, json};
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
    assert_eq!(loaded[0]["Config"]["Entrypoint"], json!(["/usr/bin/tortie"]));
}

/// A build for another architecture: `make image ARCH=arm64` builds it, and `make soak` runs the result. A small program takes its
/// place here.
#[test]
fn an_image_for_another_architecture_works() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("main.c"), "#include <stdio.h>\nint main(void) { return puts(\"here\") < 0; }\n")
        .unwrap();
    run(Command::new("aarch64-linux-gnu-gcc").arg("-o").args([path("tortie"), path("main.c")]));
    let image = ["lab", "image", "--tag", "localhost/tortie:arm64", "--binary"];
    run(Command::new(TORTIE).args(image).arg(path("tortie")).arg("--output").arg(path("image.tar")));
    let source = format!("oci-archive:{}", path("image.tar").display());
    let shown: Value = serde_json::from_str(&run(Command::new("skopeo").args(["inspect", &source]))).unwrap();
    assert_eq!((&shown["Os"], &shown["Architecture"]), (&json!("linux"), &json!("arm64")), "{shown}");
    // The program runs with the libraries of the image alone.
    std::fs::create_dir(path("image")).unwrap();
    run(Command::new("tar").arg("-C").arg(path("image")).arg("-xf").arg(path("image.tar")));
    let layer = shown["Layers"][0].as_str().unwrap().replace(':', "/");
    std::fs::create_dir(path("root")).unwrap();
    run(Command::new("tar")
        .arg("-C")
        .arg(path("root"))
        .arg("-xf")
        .arg(path("image").join("blobs").join(layer)));
    let emulated = path("root/usr/bin/calicoctl");
    let said = run(Command::new("qemu-aarch64-static").arg("-L").arg(path("root")).arg(emulated));
    assert_eq!(said.trim(), "here");
}
