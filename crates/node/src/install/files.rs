//! Writes the CNI files on the host. Each write is atomic, because runtimes may read the files concurrently, and each
//! file is recorded in the state directory, so that it can be removed again.
//!
//! A file of another program at the same path, such as Calico's plugin, is kept beside ours until ours is removed.
//! The suffix of the kept file prevents runtimes from reading it as a network configuration. A kill between any two
//! steps loses nothing: the record is written first, the kept file is never overwritten, and a record without a kept
//! file means that the file in place is the original.
//!
//! A file that another program has since written over ours, such as the installer of a returning Calico, stays when
//! ours are removed. Digests of the contents that we wrote tell the two apart.

use super::InstallError;
use data_encoding::HEXLOWER;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha1::{Digest, Sha1};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

const FILES_LIST_NAME: &str = "cni-installation.json";
/// Separate from [`FILES_LIST_NAME`], so that an older version can still read that file.
const ORIGINALS_LIST_NAME: &str = "cni-originals.json";
/// Separate from [`FILES_LIST_NAME`] for the same reason.
const DIGESTS_LIST_NAME: &str = "cni-digests.json";
/// Suffix of kept files. Runtimes read only files that end in `.conf`, `.conflist` or `.json`.
const KEPT_SUFFIX: &str = ".before-tortie";

/// The CNI files that we own on this host: plugins, credentials and the network configuration.
#[derive(Debug)]
pub struct CniFiles {
    state_dir: PathBuf,
    /// Paths in the order in which they were written.
    files: Vec<PathBuf>,
    /// Paths at which a file of another program existed.
    originals: Vec<PathBuf>,
    /// Digests of our contents by path: those in place and those about to be written. A file written by an older
    /// version has no entry.
    digests: BTreeMap<PathBuf, Vec<String>>,
}

/// A file that we no longer own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedFile {
    pub path: PathBuf,
    pub removal: FileRemoval,
}

/// The result of giving up a file that we owned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileRemoval {
    Removed,
    /// Removed, and the original file of the other program was restored.
    Restored,
    /// Left in place, because another program has replaced it.
    Left,
}

impl fmt::Display for RemovedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.removal {
            FileRemoval::Removed => write!(f, "removed: {path}"),
            FileRemoval::Restored => write!(f, "removed: {path} (the file that was there before is back)"),
            FileRemoval::Left => write!(f, "left: {path} (replaced by another program)"),
        }
    }
}

impl CniFiles {
    pub fn load(state_dir: &Path) -> Result<CniFiles, InstallError> {
        let files: Vec<PathBuf> = load_list(&state_dir.join(FILES_LIST_NAME))?;
        let mut originals: Vec<PathBuf> = load_list(&state_dir.join(ORIGINALS_LIST_NAME))?;
        let mut digests: BTreeMap<PathBuf, Vec<String>> = load_list(&state_dir.join(DIGESTS_LIST_NAME))?;
        // An earlier run was killed between writing the lists.
        originals.retain(|path| files.contains(path));
        digests.retain(|path, _| files.contains(path));
        Ok(CniFiles { state_dir: state_dir.to_owned(), files, originals, digests })
    }

    /// Fails if the path cannot be replaced and restored as a file. Changes nothing.
    pub fn check(&self, path: &Path) -> Result<(), InstallError> {
        for path in [path, &build_kept_path(path)] {
            match fs::symlink_metadata(path) {
                Ok(found) if found.is_dir() => return Err(InstallError::Directory { path: path.to_owned() }),
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(convert_file_error(path, error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Records a file that an older version wrote as ours.
    pub fn claim(&mut self, path: &Path) -> Result<(), InstallError> {
        if self.is_recorded(path) {
            return Ok(());
        }
        self.files.push(path.to_owned());
        self.save(FILES_LIST_NAME, &self.files)
    }

    /// Returns the contents of the file that another program has, or had, at this path.
    pub fn original(&self, path: &Path) -> Result<Option<Vec<u8>>, InstallError> {
        if let Some(bytes) = read(&build_kept_path(path))? {
            return Ok(Some(bytes));
        }
        if self.is_recorded(path) && !self.has_original(path) { Ok(None) } else { read(path) }
    }

    /// Replaces a file, unless it already has these contents and this mode.
    pub fn write(&mut self, path: &Path, contents: &[u8], mode: u32) -> Result<(), InstallError> {
        let is_current = fs::symlink_metadata(path).is_ok_and(|meta| {
            meta.is_file()
                && meta.permissions().mode() & 0o777 == mode
                && fs::read(path).is_ok_and(|old| old == contents)
        });
        if is_current {
            if self.is_recorded(path) && !self.digests.contains_key(path) {
                self.record_digest(path, Some(contents))?;
            }
            return Ok(());
        }
        self.record_replacement(path, Some(contents))?;
        replace(path, |new| {
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(new)?;
            file.set_permissions(Permissions::from_mode(mode))?;
            file.write_all(contents)?;
            file.sync_all()
        })
    }

    /// Moves a file of another program away until our files are removed.
    pub fn set_aside(&mut self, path: &Path) -> Result<(), InstallError> {
        if fs::symlink_metadata(path).is_err() {
            return Ok(());
        }
        self.record_replacement(path, None)?;
        remove(path)
    }

    /// Prepares the replacement of a file by new contents, or its removal, and keeps the original.
    fn record_replacement(&mut self, path: &Path, contents: Option<&[u8]>) -> Result<(), InstallError> {
        self.check(path)?;
        self.record_digest(path, contents)?;
        self.record_path(path)?;
        if self.has_original(path) {
            keep_original(path)?;
        }
        Ok(())
    }

    /// Removes all files in reverse order, and restores the originals. Files that another program has replaced stay.
    /// Files that are already gone are not an error.
    pub fn remove(mut self) -> Result<Vec<RemovedFile>, InstallError> {
        let mut removed = Vec::new();
        let mut failures = Vec::new();
        for path in std::mem::take(&mut self.files).into_iter().rev() {
            let undone = self.undo(&path);
            match undone.and_then(|removal| remove(&build_sibling_path(&path, ".tmp")).map(|()| removal)) {
                Ok(removal) => removed.push(RemovedFile { path, removal }),
                Err(error) => {
                    failures.push(error);
                    self.files.insert(0, path);
                }
            }
        }
        if !failures.is_empty() {
            failures.extend(self.save(FILES_LIST_NAME, &self.files).err());
            return Err(InstallError::Removal(failures));
        }
        // FILES goes first: if it remained without the other two, a restored original would count as ours.
        for name in [FILES_LIST_NAME, ORIGINALS_LIST_NAME, DIGESTS_LIST_NAME] {
            remove(&self.state_dir.join(name))?;
        }
        Ok(removed)
    }

    fn undo(&self, path: &Path) -> Result<FileRemoval, InstallError> {
        if self.is_replaced(path)? {
            return remove(&build_kept_path(path)).map(|()| FileRemoval::Left);
        }
        if self.has_original(path) {
            restore_original(path).map(|()| FileRemoval::Restored)
        } else {
            remove(path).map(|()| FileRemoval::Removed)
        }
    }

    /// Returns whether the file in place is known not to be ours.
    fn is_replaced(&self, path: &Path) -> Result<bool, InstallError> {
        let Some(ours) = self.digests.get(path) else { return Ok(false) };
        match fs::symlink_metadata(path) {
            Ok(found) if found.is_file() => {
                Ok(read_digest(path)?.is_some_and(|found| !ours.contains(&found)))
            }
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(convert_file_error(path, error)),
        }
    }

    fn is_recorded(&self, path: &Path) -> bool {
        self.files.iter().any(|known| known == path)
    }

    fn has_original(&self, path: &Path) -> bool {
        self.originals.iter().any(|known| known == path)
    }

    /// Records a path, and whether it has an original. A path that is written again keeps its position.
    fn record_path(&mut self, path: &Path) -> Result<(), InstallError> {
        if self.is_recorded(path) {
            return Ok(());
        }
        let exists =
            [path, &build_kept_path(path)].into_iter().any(|path| fs::symlink_metadata(path).is_ok());
        if exists && !self.has_original(path) {
            self.originals.push(path.to_owned());
            self.save(ORIGINALS_LIST_NAME, &self.originals)?;
        }
        self.files.push(path.to_owned());
        self.save(FILES_LIST_NAME, &self.files)
    }

    /// Records the digest of the new contents before the file is replaced. The digest of the current file is kept if
    /// that file is ours, because it stays in place until the replacement.
    fn record_digest(&mut self, path: &Path, contents: Option<&[u8]>) -> Result<(), InstallError> {
        let is_regular = fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
        let in_place = if is_regular { read_digest(path)? } else { None };
        let mut ours: Vec<String> = in_place.into_iter().collect();
        ours.retain(|digest| match self.digests.get(path) {
            Some(ours) => ours.contains(digest),
            None => self.is_recorded(path),
        });
        ours.extend(contents.map(digest).filter(|new| !ours.contains(new)));
        self.digests.insert(path.to_owned(), ours);
        self.save(DIGESTS_LIST_NAME, &self.digests)
    }

    fn save<L: Serialize + ?Sized>(&self, name: &str, list: &L) -> Result<(), InstallError> {
        let path = self.state_dir.join(name);
        let text =
            serde_json::to_vec(list).map_err(|source| InstallError::List { path: path.clone(), source })?;
        replace(&path, |new| {
            let mut file = File::create(new)?;
            file.write_all(&text)?;
            file.sync_all()
        })
    }
}

fn load_list<L: DeserializeOwned + Default>(path: &Path) -> Result<L, InstallError> {
    match read(path)? {
        Some(text) => serde_json::from_slice(&text)
            .map_err(|source| InstallError::List { path: path.to_owned(), source }),
        None => Ok(L::default()),
    }
}

fn digest(contents: &[u8]) -> String {
    HEXLOWER.encode(&Sha1::digest(contents))
}

fn read_digest(path: &Path) -> Result<Option<String>, InstallError> {
    Ok(read(path)?.map(|contents| digest(&contents)))
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, InstallError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(convert_file_error(path, error)),
    }
}

/// Keeps a hard link to the file in place, unless an earlier run already did: the first kept file is the original.
fn keep_original(path: &Path) -> Result<(), InstallError> {
    let kept = build_kept_path(path);
    if fs::symlink_metadata(&kept).is_ok() {
        return Ok(());
    }
    match fs::hard_link(path, &kept) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // The file system does not support hard links.
        Err(_) => replace(&kept, |new| fs::copy(path, new).map(drop)),
    }
}

/// Moves the kept file back. Without a kept file, the file in place is the original.
fn restore_original(path: &Path) -> Result<(), InstallError> {
    let kept = build_kept_path(path);
    match fs::rename(&kept, path) {
        // `rename` does nothing if both names are links to the same file, so the kept name has to be removed.
        Ok(()) => remove(&kept),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(convert_file_error(path, error)),
    }
}

fn build_kept_path(path: &Path) -> PathBuf {
    build_sibling_path(path, KEPT_SUFFIX)
}

fn build_sibling_path(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Removes a file. A missing file is not an error.
pub fn remove(path: &Path) -> Result<(), InstallError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(convert_file_error(path, error)),
        _ => Ok(()),
    }
}

/// Writes the new file beside the old one and renames it into place.
fn replace(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), InstallError> {
    let new = build_sibling_path(path, ".tmp");
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(|error| convert_file_error(dir, error))?;
    }
    let written = write(&new).and_then(|()| fs::rename(&new, path));
    written.map_err(|error| {
        // Remove the incomplete file.
        let _ = fs::remove_file(&new);
        convert_file_error(path, error)
    })
}

fn convert_file_error(path: &Path, source: io::Error) -> InstallError {
    InstallError::File { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a host directory with Calico's plugin and network list, and the paths of both.
    fn host() -> (tempfile::TempDir, [PathBuf; 2]) {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["calico", "10-calico.conflist"].map(|name| dir.path().join(name));
        for path in &paths {
            fs::write(path, "of Calico").unwrap();
        }
        fs::create_dir(dir.path().join("state")).unwrap();
        (dir, paths)
    }

    fn listing(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn contents(paths: &[PathBuf]) -> Vec<String> {
        paths.iter().map(|path| fs::read_to_string(path).unwrap()).collect()
    }

    #[test]
    fn originals_are_kept_and_restored() {
        let (dir, paths) = host();
        let state = dir.path().join("state");
        for _ in 0..2 {
            // The second run, of another version, keeps the first original.
            for text in ["ours", "ours, newer"] {
                let mut files = CniFiles::load(&state).unwrap();
                for path in &paths {
                    files.write(path, text.as_bytes(), 0o644).unwrap();
                    assert_eq!(files.original(path).unwrap().unwrap(), b"of Calico");
                }
                assert_eq!(contents(&paths), [text, text]);
            }
            let networks = listing(dir.path());
            let read = networks.iter().filter(|name| name.ends_with("conflist") || name.ends_with(".conf"));
            assert_eq!(read.count(), 1, "{networks:?}");
            let removed = CniFiles::load(&state).unwrap().remove().unwrap();
            assert!(
                removed.iter().all(|file| file.removal == FileRemoval::Restored)
                    && removed[0].path == paths[1],
                "{removed:?}"
            );
            assert_eq!(contents(&paths), ["of Calico", "of Calico"]);
            assert_eq!(listing(dir.path()), ["10-calico.conflist", "calico", "state"]);
            assert!(CniFiles::load(&state).unwrap().remove().unwrap().is_empty());
            assert_eq!(contents(&paths), ["of Calico", "of Calico"]);
        }
    }

    #[test]
    fn a_kill_at_any_step_loses_no_original() {
        // The steps of a write; the process may be killed after each of them.
        let steps: [fn(&mut CniFiles, &Path); 4] = [
            |files, path| files.record_digest(path, Some(b"ours")).unwrap(),
            |files, path| files.record_path(path).unwrap(),
            |_, path| keep_original(path).unwrap(),
            |_, path| replace(path, |new| fs::write(new, "ours")).unwrap(),
        ];
        for killed_after in 0..=steps.len() {
            for again in [false, true] {
                let (dir, paths) = host();
                let (state, path) = (dir.path().join("state"), &paths[1]);
                let mut files = CniFiles::load(&state).unwrap();
                steps.iter().take(killed_after).for_each(|step| step(&mut files, path));
                if again {
                    CniFiles::load(&state).unwrap().write(path, b"ours", 0o644).unwrap();
                }
                // A removal that is killed after the files were removed and before their lists were.
                let lists = [FILES_LIST_NAME, ORIGINALS_LIST_NAME, DIGESTS_LIST_NAME]
                    .map(|name| (state.join(name), fs::read(state.join(name)).ok()));
                CniFiles::load(&state).unwrap().remove().unwrap();
                for (list, text) in lists {
                    if let Some(text) = text {
                        fs::write(list, text).unwrap();
                    }
                }
                CniFiles::load(&state).unwrap().remove().unwrap();
                assert_eq!(contents(&paths), ["of Calico", "of Calico"], "after {killed_after}, {again}");
                assert_eq!(listing(dir.path()), ["10-calico.conflist", "calico", "state"]);
            }
        }
    }

    #[test]
    fn files_that_another_program_replaced_stay() {
        for has_originals in [true, false] {
            let (dir, paths) = host();
            let state = dir.path().join("state");
            if !has_originals {
                paths.iter().for_each(|path| fs::remove_file(path).unwrap());
            }
            let mut files = CniFiles::load(&state).unwrap();
            for path in &paths {
                files.write(path, b"ours", 0o644).unwrap();
                fs::write(path, "of a newer Calico").unwrap();
            }
            // A file that Calico writes again after we only moved its original away.
            let old = dir.path().join("old.conf");
            fs::write(&old, "of Calico").unwrap();
            files.set_aside(&old).unwrap();
            fs::write(&old, "of a newer Calico").unwrap();
            let removed = CniFiles::load(&state).unwrap().remove().unwrap();
            assert!(removed.iter().all(|file| file.removal == FileRemoval::Left), "{removed:?}");
            assert!(removed[0].to_string().starts_with("left: "), "{}", removed[0]);
            assert_eq!(contents(&paths), ["of a newer Calico"; 2]);
            assert_eq!(contents(&[old]), ["of a newer Calico"]);
            assert_eq!(listing(dir.path()), ["10-calico.conflist", "calico", "old.conf", "state"]);
            assert_eq!(listing(&state), [""; 0]);
        }
    }

    #[test]
    fn files_of_a_former_version_are_still_ours() {
        let (dir, paths) = host();
        let state = dir.path().join("state");
        let mut files = CniFiles::load(&state).unwrap();
        files.write(&paths[0], b"ours", 0o644).unwrap();
        fs::remove_file(state.join(DIGESTS_LIST_NAME)).unwrap();
        // Killed before the first write of this version replaces the file.
        let mut files = CniFiles::load(&state).unwrap();
        files.record_digest(&paths[0], Some(b"ours, newer")).unwrap();
        for with_digests in [true, false] {
            if !with_digests {
                CniFiles::load(&state).unwrap().write(&paths[0], b"ours", 0o644).unwrap();
                fs::remove_file(state.join(DIGESTS_LIST_NAME)).unwrap();
            }
            let removed = CniFiles::load(&state).unwrap().remove().unwrap();
            assert_eq!(removed[0].removal, FileRemoval::Restored);
            assert_eq!(contents(&paths), ["of Calico"; 2]);
        }
    }

    #[test]
    fn a_directory_is_not_replaced() {
        let (dir, paths) = host();
        fs::remove_file(&paths[0]).unwrap();
        fs::create_dir(&paths[0]).unwrap();
        let mut files = CniFiles::load(&dir.path().join("state")).unwrap();
        assert!(files.check(&paths[0]).unwrap_err().to_string().contains("is a directory"));
        assert!(files.write(&paths[0], b"ours", 0o755).is_err());
        assert!(files.remove().unwrap().is_empty());
    }

    #[test]
    fn a_link_is_kept_as_a_link() {
        let (dir, paths) = host();
        fs::remove_file(&paths[0]).unwrap();
        std::os::unix::fs::symlink("calico-v3", &paths[0]).unwrap();
        let state = dir.path().join("state");
        CniFiles::load(&state).unwrap().write(&paths[0], b"ours", 0o755).unwrap();
        assert_eq!(fs::read(&paths[0]).unwrap(), b"ours");
        CniFiles::load(&state).unwrap().remove().unwrap();
        assert_eq!(fs::read_link(&paths[0]).unwrap(), Path::new("calico-v3"));
    }
}
