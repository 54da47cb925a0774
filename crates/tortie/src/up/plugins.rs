//! The CNI plugins in the directory where the runtime looks for them.

use super::at;
use super::manifest::Manifest;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tortie_cni::{PROGRAM, Plugin};
use tortie_ctl::Failure;

/// What somebody else has put there by the same name is not replaced, and not removed later.
pub fn are_ours(dir: &Path, manifest: &Manifest) -> Result<(), Failure> {
    match paths(dir).find(|path| is_foreign(path, manifest)) {
        Some(path) => Err(Failure::Message(format!(
            "{} was not installed by `tortie up`; remove it, or use another directory with --cni-bin-dir",
            path.display()
        ))),
        None => Ok(()),
    }
}

/// Puts both there, or makes them those of this version.
pub fn install(dir: &Path, manifest: &mut Manifest, state_dir: &Path) -> Result<(), Failure> {
    for path in paths(dir).filter(|path| !is_installed(path)) {
        manifest.files.insert(path.clone());
        manifest.save(state_dir)?;
        write(&path).map_err(|error| at(&path, &error))?;
    }
    Ok(())
}

fn paths(dir: &Path) -> impl Iterator<Item = PathBuf> {
    [Plugin::Calico, Plugin::CalicoIpam].into_iter().map(|plugin| dir.join(plugin.name()))
}

fn is_foreign(path: &Path, manifest: &Manifest) -> bool {
    fs::symlink_metadata(path).is_ok() && !manifest.files.contains(path) && !is_installed(path)
}

fn is_installed(path: &Path) -> bool {
    let is_program = |meta: fs::Metadata| meta.is_file() && meta.permissions().mode() & 0o111 != 0;
    fs::symlink_metadata(path).is_ok_and(is_program) && fs::read(path).is_ok_and(|there| there == PROGRAM)
}

/// A runtime may start it at any moment: it is whole or not there.
fn write(path: &Path) -> io::Result<()> {
    let new = path.with_extension("new");
    let written = fs::write(&new, PROGRAM)
        .and_then(|()| fs::set_permissions(&new, Permissions::from_mode(0o755)))
        .and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        // Half of it is of no use to anybody.
        let _ = fs::remove_file(&new);
    }
    written
}
