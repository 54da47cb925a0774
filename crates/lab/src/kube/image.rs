//! Builds container images with one layer in the OCI image layout, without a container tool and without network access.

use super::archive::TarArchive;
use super::elf::ProgramArchitecture;
use super::programs;
use crate::error::{LabError, LabResult};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Image of the process that holds a pod's namespaces.
pub const PAUSE_IMAGE: &str = "localhost/pause:lab";
/// Two tags: kubelet always pulls `latest` unless the pod sets imagePullPolicy; the other tag is never pulled.
const BUSYBOX_IMAGES: [&str; 2] = ["docker.io/library/busybox:latest", "docker.io/library/busybox:1"];
/// Image name that the manifests of `deploy/` use.
pub const TORTIE_IMAGE: &str = "localhost/tortie:latest";

const PROGRAM_NAMES: [&str; 3] = ["calicoctl", "calico", "calico-ipam"];
/// Shell script that waits for SIGTERM and reaps orphans in pods with a shared PID namespace.
const PAUSE_SCRIPT: &str = "trap 'exit 0' TERM INT; while :; do sleep 86400 & wait $!; done";

/// One layer and its entrypoint.
#[derive(Debug)]
pub struct ContainerImage {
    /// Names of this same image.
    names: Vec<String>,
    layer: Vec<u8>,
    entrypoint: Vec<String>,
    architecture: ProgramArchitecture,
}

impl ContainerImage {
    /// Builds an image of Debian's busybox with a link for every applet, and GNU wget, because Debian's applet crashes if
    /// it is given a timeout.
    pub fn busybox() -> LabResult<ContainerImage> {
        let names = BUSYBOX_IMAGES.map(str::to_owned).to_vec();
        let mut tree = busybox_tree()?;
        let wget = installed("wget", "wget")?;
        tree.program("bin/wget", &wget)?;
        // As busybox, which tries once.
        tree.file("etc/wgetrc", 0o644, b"tries = 1\n".to_vec());
        let layer = tree.layer().map_err(LabError::file(&wget))?;
        let architecture = ProgramArchitecture::own();
        Ok(ContainerImage { names, layer, entrypoint: Vec::new(), architecture })
    }

    pub fn pause() -> LabResult<ContainerImage> {
        let entrypoint = ["/bin/sh", "-c", PAUSE_SCRIPT].map(str::to_owned).to_vec();
        let layer = busybox_tree()?.layer();
        let layer = layer.map_err(|source| LabError::Io { what: format!("image {PAUSE_IMAGE}"), source })?;
        let architecture = ProgramArchitecture::own();
        Ok(ContainerImage { names: vec![PAUSE_IMAGE.to_owned()], layer, entrypoint, architecture })
    }

    /// Builds an image of a Tortie program and its shared libraries.
    pub fn tortie(program: &Path, name: &str) -> LabResult<ContainerImage> {
        ContainerImage::with_links(program, "tortie", &PROGRAM_NAMES, name)
    }

    /// Builds an image of any program and its shared libraries. The program keeps its name.
    pub fn program(program: &Path, name: &str) -> LabResult<ContainerImage> {
        let file_name = program.file_name().and_then(|file_name| file_name.to_str());
        let file_name = file_name.ok_or_else(|| {
            LabError::refused(format!("--program: {} is not the path of a program", program.display()))
        })?;
        ContainerImage::with_links(program, file_name, &[], name)
    }

    fn with_links(program: &Path, file_name: &str, links: &[&str], name: &str) -> LabResult<ContainerImage> {
        let mut tree = LayerTree::default();
        let architecture = tree.program(&format!("usr/bin/{file_name}"), program)?;
        for link in links {
            tree.link(&format!("usr/bin/{link}"), file_name);
        }
        let entrypoint = vec![format!("/usr/bin/{file_name}")];
        let layer = tree.layer().map_err(|source| LabError::Io { what: format!("image {name}"), source })?;
        Ok(ContainerImage { names: vec![name.to_owned()], layer, entrypoint, architecture })
    }

    /// Writes an archive for `ctr images import` and `podman load`.
    pub fn write(&self, path: &Path) -> LabResult<()> {
        self.try_write(path).map_err(LabError::file(path))
    }

    fn try_write(&self, path: &Path) -> io::Result<()> {
        let new = path.with_extension("new");
        let mut archive = TarArchive::new(BufWriter::new(File::create(&new)?));
        archive.file("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        archive.directory("blobs")?;
        archive.directory("blobs/sha256")?;
        let layer = blob(&mut archive, "application/vnd.oci.image.layer.v1.tar", &self.layer)?;
        let config = json!({
            "architecture": self.architecture.name(),
            "os": "linux",
            "config": {"Entrypoint": self.entrypoint, "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"], "WorkingDir": "/"},
            // The layer is not compressed, so its digest is also that of its contents.
            "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
        });
        let config =
            blob(&mut archive, "application/vnd.oci.image.config.v1+json", config.to_string().as_bytes())?;
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config,
            "layers": [layer],
        });
        let manifest = blob(
            &mut archive,
            "application/vnd.oci.image.manifest.v1+json",
            manifest.to_string().as_bytes(),
        )?;
        let mut manifests = Vec::new();
        for name in &self.names {
            let tag = name.rsplit_once(':').map_or("latest", |(_, tag)| tag);
            let mut manifest = manifest.clone();
            manifest["annotations"] =
                json!({"io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag});
            manifests.push(manifest);
        }
        let index = json!({"schemaVersion": 2, "manifests": manifests});
        archive.file("index.json", 0o644, index.to_string().as_bytes())?;
        archive.finish()?;
        fs::rename(&new, path)
    }
}

/// Writes a copy of a program without debug information and returns its path, or the path of the program if that fails.
pub fn without_debug_info(program: &Path, copy: &Path) -> PathBuf {
    let stripped = Command::new("strip").args(["--strip-debug", "-o"]).arg(copy).arg(program).output();
    let slim = if stripped.is_ok_and(|output| output.status.success()) { copy } else { program };
    slim.to_owned()
}

/// Contents of a layer, ordered by name. Parent directories are added as needed.
#[derive(Debug, Default)]
struct LayerTree(std::collections::BTreeMap<String, LayerEntry>);

#[derive(Debug)]
enum LayerEntry {
    Directory,
    File { mode: u32, contents: Vec<u8> },
    Link(String),
}

impl LayerTree {
    fn file(&mut self, name: &str, mode: u32, contents: Vec<u8>) {
        self.put(name, LayerEntry::File { mode, contents });
    }

    /// Adds a program and its shared libraries, at the paths where its loader looks for them. Returns its architecture.
    fn program(&mut self, name: &str, program: &Path) -> LabResult<ProgramArchitecture> {
        let contents = fs::read(program).map_err(LabError::file(program))?;
        let architecture = ProgramArchitecture::read(program, &contents)?;
        self.file(name, 0o755, contents);
        for library in architecture.libraries(program)? {
            let contents = fs::read(&library.source).map_err(LabError::file(&library.source))?;
            self.file(&library.target, 0o755, contents);
        }
        Ok(architecture)
    }

    fn link(&mut self, name: &str, target: &str) {
        self.put(name, LayerEntry::Link(target.to_owned()));
    }

    fn put(&mut self, name: &str, node: LayerEntry) {
        for (end, _) in name.match_indices('/') {
            self.0.entry(name[..end].to_owned()).or_insert(LayerEntry::Directory);
        }
        self.0.insert(name.to_owned(), node);
    }

    fn layer(&self) -> io::Result<Vec<u8>> {
        let mut archive = TarArchive::new(Vec::new());
        for (name, node) in &self.0 {
            match node {
                LayerEntry::Directory => archive.directory(name)?,
                LayerEntry::File { mode, contents } => archive.file(name, *mode, contents)?,
                LayerEntry::Link(target) => archive.link(name, target)?,
            }
        }
        archive.finish()
    }
}

/// Returns the path of a program that the images contain.
fn installed(program: &str, package: &str) -> LabResult<PathBuf> {
    programs::which(program)
        .ok_or_else(|| LabError::refused(format!("{program} is missing (package {package})")))
}

fn busybox_tree() -> LabResult<LayerTree> {
    let program = installed("busybox", "busybox-static")?;
    try_busybox_tree(&program).map_err(LabError::file(&program))
}

fn try_busybox_tree(program: &Path) -> io::Result<LayerTree> {
    let listed = Command::new(program).arg("--list").output()?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let mut tree = LayerTree::default();
    tree.file("bin/busybox", 0o755, fs::read(program)?);
    tree.file("etc/passwd", 0o644, b"root:x:0:0:root:/:/bin/sh\n".to_vec());
    tree.file("etc/group", 0o644, b"root:x:0:\n".to_vec());
    tree.put("tmp", LayerEntry::Directory);
    for name in listed.lines().filter(|name| *name != "busybox" && !name.contains('/')) {
        tree.link(&format!("bin/{name}"), "busybox");
    }
    Ok(tree)
}

/// Adds a blob and returns its descriptor.
fn blob<W: io::Write>(archive: &mut TarArchive<W>, media_type: &str, contents: &[u8]) -> io::Result<Value> {
    let digest: String = Sha256::digest(contents).iter().map(|byte| format!("{byte:02x}")).collect();
    archive.file(&format!("blobs/sha256/{digest}"), 0o644, contents)?;
    Ok(json!({"mediaType": media_type, "digest": format!("sha256:{digest}"), "size": contents.len()}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_what_its_index_says() {
        let dir = tempfile::tempdir().unwrap();
        let program = std::env::current_exe().unwrap();
        let file = dir.path().join("image.tar");
        ContainerImage::tortie(&program, "localhost/x:1").unwrap().write(&file).unwrap();
        let ran = Command::new("tar").arg("-C").arg(dir.path()).arg("-xf").arg(&file).output().unwrap();
        assert!(ran.status.success(), "{ran:?}");
        let read = |name: &str| -> Value {
            serde_json::from_slice(&fs::read(dir.path().join(name)).unwrap()).unwrap()
        };
        let blob = |digest: &Value| format!("blobs/{}", digest.as_str().unwrap().replace(':', "/"));
        let index = read("index.json");
        let entry = &index["manifests"][0];
        assert_eq!(entry["annotations"]["io.containerd.image.name"], "localhost/x:1");
        let manifest = read(&blob(&entry["digest"]));
        let config = read(&blob(&manifest["config"]["digest"]));
        assert_eq!(config["rootfs"]["diff_ids"][0], manifest["layers"][0]["digest"]);
        assert_eq!(config["config"]["Entrypoint"], json!(["/usr/bin/tortie"]));
        let layer = dir.path().join(blob(&manifest["layers"][0]["digest"]));
        let size = fs::metadata(&layer).unwrap().len();
        assert_eq!(manifest["layers"][0]["size"], size);
        let ran = Command::new("tar").arg("-tf").arg(&layer).output().unwrap();
        let listed = String::from_utf8(ran.stdout).unwrap();
        assert!(listed.contains("usr/bin/tortie\n") && listed.contains("usr/bin/calico-ipam\n"), "{listed}");
        assert!(listed.contains("libc.so.6"), "{listed}");
    }
}
