//! The credential files of workloads: `<prefix>/creds/*.json`. A driver writes one for each volume that it mounts into a
//! workload, and removes it with the volume.
//!
//! Files are read with limits. One that cannot be used is reported and read again in the next round; if it was usable
//! before, its previous content stays in force, because a driver may be rewriting it.

use nix::errno::Errno;
use nix::fcntl::OFlag;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use tortie_plan::WorkloadId;

const MAX_CREDENTIAL_BYTES: u64 = 4 << 10;
/// Maximum number of credential files that are used, and of entries of their directory that are read.
const MAX_CREDENTIAL_FILES: usize = 1024;
const MAX_DIRECTORY_ENTRIES: usize = 16 << 10;
/// The limits of Kubernetes for names; a UID is shorter.
const MAX_NAME_BYTES: usize = 253;
const MAX_UID_BYTES: usize = 64;
const DEFAULT_ORCHESTRATOR: &str = "k8s";
const DEFAULT_ENDPOINT: &str = "eth0";

/// A workload that may connect, and the name of the directory of its socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadCredentials {
    pub uid: String,
    pub workload: WorkloadId,
}

/// The reason why a credential file is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsError {
    #[error("{0}")]
    Io(String),
    #[error("it is not a regular file")]
    NotRegular,
    #[error("it has {0} bytes; at most {MAX_CREDENTIAL_BYTES} are accepted")]
    TooLarge(u64),
    #[error("it is not JSON with the fields UID, Workload and Namespace: {0}")]
    Json(String),
    #[error("{field}: {value:?} is not {expected}")]
    Field { field: &'static str, value: String, expected: &'static str },
    #[error("{0} has the same UID and names another workload")]
    Duplicate(String),
    #[error("{0} is newer and names the same workload")]
    Superseded(String),
    #[error("its owner is neither root nor the user of the node, or others may write to it")]
    Untrusted,
    #[error("there are more than {MAX_CREDENTIAL_FILES} credential files")]
    TooMany,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct CredentialFile {
    #[serde(rename = "UID")]
    uid: String,
    /// The name of the pod; for the orchestrator `cni`, the ID of the container.
    workload: String,
    namespace: String,
    /// Calico's drivers do not write these two.
    #[serde(default)]
    orchestrator: Option<String>,
    #[serde(default)]
    endpoint: Option<String>,
}

/// The files as they were read last, by name.
#[derive(Debug, Default)]
pub struct CredentialDirectory {
    files: BTreeMap<String, KnownFile>,
}

#[derive(Debug, Default)]
struct KnownFile {
    /// Identity, size and time of the content that was read.
    version: Option<FileVersion>,
    credentials: Option<WorkloadCredentials>,
    error: Option<CredentialsError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileVersion {
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileVersion {
    fn new(metadata: &Metadata) -> FileVersion {
        FileVersion {
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// The file of a workload that was written last.
#[derive(Clone, Copy)]
struct NewestFile<'a> {
    name: &'a str,
    uid: &'a str,
    modified: (i64, i64),
}

/// The result of one round.
#[derive(Debug, Default)]
pub struct CredentialRound {
    /// Usable credentials by UID.
    pub credentials: BTreeMap<String, WorkloadCredentials>,
    /// Files that are not used for a new reason.
    pub refused: Vec<(String, CredentialsError)>,
}

impl CredentialDirectory {
    /// Reads the files that have changed. A directory that does not exist is empty.
    pub fn read(&mut self, dir: &Path) -> io::Result<CredentialRound> {
        let mut round = CredentialRound::default();
        let (names, ignored) = self.list(dir)?;
        self.files.retain(|name, _| names.contains(name));
        let mut before = BTreeMap::new();
        for name in names {
            let file = self.files.entry(name.clone()).or_default();
            if let Some(error) = file.error.take() {
                before.insert(name.clone(), error);
            }
            file.error = refresh(file, &dir.join(name)).err();
        }
        let conflicts = self.find_conflicts();
        for (name, file) in &mut self.files {
            if let Some(conflict) = conflicts.get(name) {
                file.error = Some(conflict.clone());
            } else if let Some(credentials) = &file.credentials {
                round.credentials.insert(credentials.uid.clone(), credentials.clone());
            }
            if let Some(error) = file.error.clone().filter(|error| before.get(name) != Some(error)) {
                round.refused.push((name.clone(), error));
            }
        }
        round.refused.extend(ignored.map(|name| (name, CredentialsError::TooMany)));
        Ok(round)
    }

    /// Returns the files whose credentials are not used because of those of another file: of two files with one UID and
    /// different content the first counts, and of two UIDs for one workload the newest. The older one belongs to a pod of
    /// the same name that is being deleted, and whose proxy must not count as that of its successor. A pod with several
    /// volumes has several files with the same content.
    fn find_conflicts(&self) -> BTreeMap<String, CredentialsError> {
        let mut conflicts = BTreeMap::new();
        let mut first_of_uid: BTreeMap<&str, (&str, &WorkloadCredentials)> = BTreeMap::new();
        let mut newest_of_workload: BTreeMap<&WorkloadId, NewestFile> = BTreeMap::new();
        for (name, file) in &self.files {
            let Some((credentials, version)) = file.credentials.as_ref().zip(file.version) else { continue };
            let (owner, first) = *first_of_uid.entry(&credentials.uid).or_insert((name, credentials));
            if first != credentials {
                conflicts.insert(name.clone(), CredentialsError::Duplicate(owner.to_owned()));
                continue;
            }
            let this = NewestFile { name, uid: &credentials.uid, modified: version.modified };
            let newest = newest_of_workload.entry(&credentials.workload).or_insert(this);
            if this.modified > newest.modified {
                *newest = this;
            }
        }
        let mut superseded = BTreeMap::new();
        for (name, file) in self.files.iter().filter(|(name, _)| !conflicts.contains_key(*name)) {
            let Some(credentials) = &file.credentials else { continue };
            let newest =
                newest_of_workload.get(&credentials.workload).filter(|newest| newest.uid != credentials.uid);
            if let Some(newest) = newest {
                superseded.insert(name.clone(), CredentialsError::Superseded(newest.name.to_owned()));
            }
        }
        conflicts.append(&mut superseded);
        conflicts
    }

    /// Returns the names of the files to use, and one that is ignored because there are too many. Known files take
    /// precedence, so that new ones cannot displace them.
    fn list(&self, dir: &Path) -> io::Result<(BTreeSet<String>, Option<String>)> {
        let entries = match fs::read_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Default::default()),
            entries => entries?,
        };
        let mut known = BTreeSet::new();
        let mut new = BTreeSet::new();
        for entry in entries.take(MAX_DIRECTORY_ENTRIES) {
            let Ok(name) = entry?.file_name().into_string() else { continue };
            if !name.ends_with(".json") || name.starts_with('.') {
                continue;
            }
            if self.files.contains_key(&name) {
                known.insert(name)
            } else {
                new.insert(name)
            };
        }
        let room = MAX_CREDENTIAL_FILES.saturating_sub(known.len());
        let ignored = new.iter().nth(room).cloned();
        known.extend(new.into_iter().take(room));
        Ok((known, ignored))
    }
}

/// Reads a file again if it has changed or could not be used.
fn refresh(file: &mut KnownFile, path: &Path) -> Result<(), CredentialsError> {
    let io_error = |error: io::Error| CredentialsError::Io(error.to_string());
    let metadata = fs::symlink_metadata(path).map_err(io_error)?;
    let version = FileVersion::new(&metadata);
    if file.version == Some(version) {
        return Ok(());
    }
    file.credentials = Some(read_file(path)?);
    file.version = Some(version);
    Ok(())
}

fn read_file(path: &Path) -> Result<WorkloadCredentials, CredentialsError> {
    let io_error = |error: io::Error| CredentialsError::Io(error.to_string());
    // A symbolic link is not followed, and opening a FIFO does not block.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path);
    let opened = opened.map_err(|error| match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ELOOP) => CredentialsError::NotRegular,
        _ => io_error(error),
    })?;
    let metadata = opened.metadata().map_err(io_error)?;
    if !metadata.is_file() {
        return Err(CredentialsError::NotRegular);
    }
    if !is_trusted(&metadata) {
        return Err(CredentialsError::Untrusted);
    }
    if metadata.len() > MAX_CREDENTIAL_BYTES {
        return Err(CredentialsError::TooLarge(metadata.len()));
    }
    let mut text = Vec::new();
    opened.take(MAX_CREDENTIAL_BYTES).read_to_end(&mut text).map_err(io_error)?;
    parse_credentials(&text)
}

/// Returns whether only root or the user of the node can have written a file.
fn is_trusted(metadata: &Metadata) -> bool {
    const WRITABLE_BY_OTHERS: u32 = 0o022;
    let is_own = metadata.uid() == 0 || metadata.uid() == rustix::process::geteuid().as_raw();
    is_own && metadata.mode() & WRITABLE_BY_OTHERS == 0
}

fn parse_credentials(text: &[u8]) -> Result<WorkloadCredentials, CredentialsError> {
    let file: CredentialFile =
        serde_json::from_slice(text).map_err(|error| CredentialsError::Json(error.to_string()))?;
    check_uid(&file.uid)?;
    let orchestrator = file.orchestrator.unwrap_or_else(|| DEFAULT_ORCHESTRATOR.to_owned());
    let endpoint = file.endpoint.unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
    check_name("Namespace", &file.namespace)?;
    check_name("Workload", &file.workload)?;
    check_name("Orchestrator", &orchestrator)?;
    check_name("Endpoint", &endpoint)?;
    let workload = format!("{}/{}", file.namespace, file.workload);
    Ok(WorkloadCredentials { uid: file.uid, workload: WorkloadId { orchestrator, workload, endpoint } })
}

/// Checks a UID, which becomes the name of a directory.
fn check_uid(uid: &str) -> Result<(), CredentialsError> {
    let is_plain = uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if uid.is_empty() || uid.len() > MAX_UID_BYTES || uid.starts_with('.') || !is_plain {
        return Err(CredentialsError::Field {
            field: "UID",
            value: uid.chars().take(MAX_UID_BYTES).collect(),
            expected: "1 to 64 letters, digits, '-', '_' and '.', without a dot in front",
        });
    }
    Ok(())
}

fn check_name(field: &'static str, name: &str) -> Result<(), CredentialsError> {
    let has_invalid = name.contains('/') || name.chars().any(char::is_control);
    if name.is_empty() || name.len() > MAX_NAME_BYTES || has_invalid {
        let value = name.chars().take(MAX_UID_BYTES).collect();
        return Err(CredentialsError::Field { field, value, expected: "a name without '/'" });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::fs::{File, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn file_for(uid: &str, workload: &str) -> String {
        json!({"UID": uid, "Workload": workload, "Namespace": "shop", "ServiceAccount": "default"})
            .to_string()
    }

    /// Returns credentials for a workload whose name contains the UID.
    fn file(uid: &str) -> String {
        file_for(uid, &format!("web-{uid}"))
    }

    fn read(directory: &mut CredentialDirectory, dir: &Path) -> (Vec<String>, Vec<String>) {
        let round = directory.read(dir).unwrap();
        let refused = round.refused.iter().map(|(name, error)| format!("{name}: {error}")).collect();
        (round.credentials.into_keys().collect(), refused)
    }

    #[test]
    fn credentials_name_their_workload() {
        let pod = parse_credentials(file_for("a-1", "web").as_bytes()).unwrap();
        let id = |orchestrator: &str, workload: &str, endpoint: &str| WorkloadId {
            orchestrator: orchestrator.into(),
            workload: workload.into(),
            endpoint: endpoint.into(),
        };
        assert_eq!(pod, WorkloadCredentials { uid: "a-1".into(), workload: id("k8s", "shop/web", "eth0") });
        let text = json!({
            "UID": "b", "Workload": "c1", "Namespace": "default", "Orchestrator": "cni", "Endpoint": "eth1",
        });
        let container = parse_credentials(text.to_string().as_bytes()).unwrap();
        assert_eq!(container.workload, id("cni", "default/c1", "eth1"));
    }

    #[test]
    fn dangerous_names_are_refused() {
        let long = "x".repeat(65);
        for uid in ["", ".", "..", "../../etc", "a/b", "/etc", ".hidden", "a\0b", "a b", "ü", &long] {
            let error = parse_credentials(file(uid).as_bytes()).unwrap_err();
            assert!(matches!(error, CredentialsError::Field { field: "UID", .. }), "{uid}: {error}");
        }
        for (field, value) in
            [("Namespace", ""), ("Namespace", "a/b"), ("Workload", "../x"), ("Workload", "a\n")]
        {
            let mut text = json!({"UID": "a", "Workload": "web", "Namespace": "shop"});
            text[field] = json!(value);
            let error = parse_credentials(text.to_string().as_bytes()).unwrap_err();
            assert!(matches!(error, CredentialsError::Field { .. }), "{field} {value}: {error}");
        }
    }

    #[test]
    fn unusable_files_are_refused_once_and_retried() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let mut directory = CredentialDirectory::default();
        assert_eq!(read(&mut directory, &at("missing")), (vec![], vec![]));
        fs::write(at("partial.json"), &file("part")[..20]).unwrap();
        fs::write(at("huge.json"), " ".repeat(1 << 20)).unwrap();
        fs::write(at("secret"), file("linked")).unwrap();
        symlink(at("secret"), at("link.json")).unwrap();
        fs::create_dir(at("dir.json")).unwrap();
        fs::write(at("good.json"), file("good")).unwrap();
        let other = json!({"UID": "good", "Workload": "other", "Namespace": "shop"});
        fs::write(at("same.json"), other.to_string()).unwrap();
        fs::write(at("README"), "x").unwrap();
        let (uids, refused) = read(&mut directory, dir.path());
        assert_eq!(uids, ["good"]);
        let refused: Vec<&str> = refused.iter().map(|text| text.split(": ").next().unwrap()).collect();
        assert_eq!(refused, ["dir.json", "huge.json", "link.json", "partial.json", "same.json"]);
        assert_eq!(read(&mut directory, dir.path()), (vec!["good".to_owned()], vec![]), "reported once");
        fs::write(at("partial.json"), file("part")).unwrap();
        fs::remove_file(at("good.json")).unwrap();
        assert_eq!(read(&mut directory, dir.path()).0, ["good", "part"], "the other file with the UID");
        fs::remove_file(at("same.json")).unwrap();
        assert_eq!(read(&mut directory, dir.path()).0, ["part"]);
    }

    #[test]
    fn the_newest_file_of_a_workload_counts() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let mut directory = CredentialDirectory::default();
        let write = |name: &str, uid: &str, seconds: u64| {
            fs::write(at(name), file_for(uid, "web")).unwrap();
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            File::options().write(true).open(at(name)).unwrap().set_modified(time).unwrap();
        };
        write("b.json", "first", 1000);
        assert_eq!(read(&mut directory, dir.path()).0, ["first"]);
        write("a.json", "second", 2000);
        let superseded = "b.json: a.json is newer and names the same workload".to_owned();
        assert_eq!(read(&mut directory, dir.path()), (vec!["second".to_owned()], vec![superseded]));
        write("c.json", "third", 3000);
        let (uids, refused) = read(&mut directory, dir.path());
        let superseded =
            ["a.json", "b.json"].map(|name| format!("{name}: c.json is newer and names the same workload"));
        assert_eq!((uids, refused), (vec!["third".to_owned()], superseded.to_vec()));
        fs::remove_file(at("a.json")).unwrap();
        fs::remove_file(at("c.json")).unwrap();
        assert_eq!(read(&mut directory, dir.path()).0, ["first"]);
    }

    #[test]
    fn files_that_others_can_write_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        let mut directory = CredentialDirectory::default();
        fs::write(&path, file("first")).unwrap();
        for mode in [0o666, 0o620] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let (uids, refused) = read(&mut directory, dir.path());
            assert!(uids.is_empty(), "{mode:o}");
            assert!(mode == 0o620 || refused[0].contains("others may write"), "{refused:?}");
        }
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert_eq!(read(&mut directory, dir.path()).0, ["first"]);
    }

    #[test]
    fn volumes_of_one_pod_share_credentials() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let mut directory = CredentialDirectory::default();
        for name in ["first.json", "second.json"] {
            fs::write(path(name), file("a")).unwrap();
        }
        assert_eq!(read(&mut directory, dir.path()), (vec!["a".to_owned()], vec![]));
        fs::remove_file(path("first.json")).unwrap();
        assert_eq!(read(&mut directory, dir.path()), (vec!["a".to_owned()], vec![]));
    }

    #[test]
    fn rewritten_credentials_stay_in_force() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        let mut directory = CredentialDirectory::default();
        fs::write(&path, file("first")).unwrap();
        assert_eq!(read(&mut directory, dir.path()).0, ["first"]);
        fs::write(&path, "{").unwrap();
        let (uids, refused) = read(&mut directory, dir.path());
        assert_eq!((uids, refused.len()), (vec!["first".to_owned()], 1));
        fs::write(&path, file("second")).unwrap();
        assert_eq!(read(&mut directory, dir.path()), (vec!["second".to_owned()], vec![]));
    }

    #[test]
    fn number_of_files_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let mut directory = CredentialDirectory::default();
        fs::write(dir.path().join("z.json"), file("z")).unwrap();
        assert_eq!(read(&mut directory, dir.path()).0, ["z"]);
        for number in 0..MAX_CREDENTIAL_FILES {
            fs::write(dir.path().join(format!("a{number}.json")), file(&format!("a{number}"))).unwrap();
        }
        let (uids, refused) = read(&mut directory, dir.path());
        assert_eq!(uids.len(), MAX_CREDENTIAL_FILES);
        assert!(uids.contains(&"z".to_owned()), "known files are not displaced");
        assert!(refused[0].contains("more than 1024 credential files"), "{refused:?}");
    }
}
