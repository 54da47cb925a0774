//! The data directory: creates a new one, checks and opens an existing one, and rejects any other without modifying
//! it.

use super::acknowledged::{self, AcknowledgedFile, CommitMark};
use super::auth::AuthState;
use super::batch::{LEASES_TABLE, StoreState};
use super::data_file::DataFile;
use super::disk_space::{self, DiskReserve};
use super::history_record::{CommitRevision, decode_history};
use super::index::{LatestVersion, VersionIndex};
use super::revision_view::{HISTORY_TABLE, LEASE_KEYS_TABLE};
use super::storage_fault::StorageFault;
use prost::Message;
use redb::{Builder, Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition, TableError};
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tortie_tls::TlsError;

const META_TABLE: TableDefinition<&str, &[u8]> = TableDefinition::new("tortie_datastore");
const FORMAT_VERSION: u32 = 1;
/// Name of the database inside a data directory.
pub const DATABASE_FILE_NAME: &str = "store.redb";
/// Suffix of unfinished files. Files that a crash leaves behind are removed at the next start.
const TEMPORARY_SUFFIX: &str = ".tmp";
/// A snapshot ends with the SHA-256 of the preceding bytes, as in etcd.
pub const CHECKSUM_BYTES: u64 = 32;
/// Size of redb's cache; the page cache of the kernel does the rest.
const CACHE_BYTES: usize = 8 << 20;

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{dir}: {source}")]
    Io { dir: PathBuf, source: io::Error },
    #[error("{dir} is in use by another process; stop it first, or use another data directory")]
    InUse { dir: PathBuf },
    #[error(
        "{dir} is not empty and holds no Tortie datastore; name an empty or a new directory as data directory"
    )]
    Foreign { dir: PathBuf },
    #[error("{dir} is not empty; a snapshot is restored into an empty or a new directory")]
    NotEmpty { dir: PathBuf },
    #[error(
        "{dir} holds a corrupt database ({reason}); move {DATABASE_FILE_NAME} away and restore a snapshot"
    )]
    Corrupt { dir: PathBuf, reason: String },
    #[error(
        "{dir} has lost acknowledged writes: its newest commit is damaged, so that revision {revision} became {found}; \
         move {DATABASE_FILE_NAME} away and restore a snapshot, or remove {} to go on without the lost writes",
        acknowledged::ACKNOWLEDGED_FILE_NAME
    )]
    Lost { dir: PathBuf, revision: i64, found: i64 },
    #[error(
        "{file} is not a whole snapshot ({reason}); nothing was restored: use another one, or save it again with `etcdctl snapshot save`"
    )]
    Snapshot { file: PathBuf, reason: String },
    #[error(
        "{file} is a snapshot of etcd, not of the embedded store; restore it into an etcd and move the data with `calicoctl datastore migrate export` and `import`"
    )]
    EtcdSnapshot { file: PathBuf },
    #[error(
        "{dir} was written by a newer version (format {format}, this one knows {FORMAT_VERSION}); use that version"
    )]
    NewerFormat { dir: PathBuf, format: u32 },
    #[error("cannot listen on {url}: {source}")]
    Listen { url: String, source: io::Error },
    #[error(
        "cannot listen on {url}: other machines could read and write everything, unencrypted and without a password; \
         use https:// with a certificate, or --allow-plaintext if that is what you want"
    )]
    Plaintext { url: String },
    #[error("cannot listen on {url}: TLS needs --cert-file and --key-file")]
    NoCertificate { url: String },
    #[error("{0}")]
    Tls(#[from] TlsError),
    #[error("cannot listen on {url}: another server answers there; stop it first, or name another address")]
    AddressInUse { url: String },
}

/// The identity of a store, fixed when it is created, empty or from a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreIdentity {
    pub cluster: u64,
    pub member: u64,
}

impl StoreIdentity {
    fn new() -> StoreIdentity {
        StoreIdentity { cluster: rand::random(), member: rand::random() }
    }
}

/// A database that passed all checks.
pub struct OpenedStore {
    pub database: Database,
    pub files: Option<StoreFiles>,
    pub identity: StoreIdentity,
    pub state: StoreState,
    pub auth: Arc<AuthState>,
    pub index: VersionIndex,
}

/// The files of a store.
pub struct StoreFiles {
    pub dir: PathBuf,
    pub file: DataFile,
    pub reserve: Arc<DiskReserve>,
    /// `None` if it could not be created.
    pub acknowledged: Option<Arc<AcknowledgedFile>>,
}

pub fn open(dir: &Path) -> Result<OpenedStore, OpenError> {
    open_or_create(dir).map_err(|defect| defect.of_directory(dir))
}

fn open_or_create(dir: &Path) -> Result<OpenedStore, DatabaseDefect> {
    match inspect(dir)? {
        DirectoryContent::Store => {}
        DirectoryContent::Nothing => {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
            create(dir)?;
        }
        DirectoryContent::Foreign => return Err(DatabaseDefect::Foreign),
    }
    let path = dir.join(DATABASE_FILE_NAME);
    let file = OpenOptions::new().read(true).write(true).open(&path)?;
    lock(&file, &path)?;
    let DatabaseExtent { database: len, is_snapshot } = extent(&file)?;
    // A snapshot that was put in place manually is older than the record, as intended.
    let mark = if is_snapshot { None } else { AcknowledgedFile::read(dir)? };
    let reserve = Arc::new(DiskReserve::open(dir));
    let data = DataFile::on_probation(file, len, Some(reserve.clone()));
    let mut opened = check(data.clone(), mark)?;
    remove_leftovers(dir)?;
    reserve.hold();
    let acknowledged = match AcknowledgedFile::open(dir) {
        Ok(acknowledged) => Some(Arc::new(acknowledged)),
        Err(error) => {
            tracing::warn!(
                "cannot make {FILE} in {}: {error}; a damaged commit could go unnoticed at the next start",
                dir.display(),
                FILE = acknowledged::ACKNOWLEDGED_FILE_NAME
            );
            None
        }
    };
    if is_snapshot && let Some(acknowledged) = &acknowledged {
        acknowledged.restart(CommitMark::new(opened.identity, opened.state.sequence, opened.state.revision));
    }
    opened.files = Some(StoreFiles { dir: dir.to_owned(), file: data, reserve, acknowledged });
    Ok(opened)
}

/// Reopens the database after a write failed for lack of space. The file is in the state of the last commit.
pub fn reopen(files: &mut StoreFiles) -> Result<OpenedStore, StorageFault> {
    let file = files.file.file().try_clone()?;
    let len = file.metadata()?.len();
    let data = DataFile::on_probation(file, len, Some(files.reserve.clone()));
    let opened =
        check(data.clone(), AcknowledgedFile::read(&files.dir)?).map_err(DatabaseDefect::into_fault)?;
    files.file = data;
    Ok(opened)
}

/// Creates a store that exists only in memory.
pub fn in_memory() -> Result<OpenedStore, StorageFault> {
    let database =
        Builder::new().set_cache_size(1 << 20).create_with_backend(redb::backends::InMemoryBackend::new())?;
    let (identity, state) = initialize(&database)?;
    Ok(OpenedStore {
        database,
        files: None,
        identity,
        state,
        auth: Arc::default(),
        index: VersionIndex::default(),
    })
}

/// Creates a data directory from a snapshot. The directory must be empty or new. The store gets a new identity: its
/// revisions continue from the snapshot, so clients that have seen different revisions with the same numbers must be
/// able to detect the change.
pub fn restore(snapshot: &Path, dir: &Path) -> Result<(), OpenError> {
    let content = inspect(dir).map_err(|source| OpenError::Io { dir: dir.to_owned(), source })?;
    let DirectoryContent::Nothing = content else {
        return Err(OpenError::NotEmpty { dir: dir.to_owned() });
    };
    let made = !dir.exists();
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|source| OpenError::Io { dir: dir.to_owned(), source })?;
    let temporary = dir.join(format!("{DATABASE_FILE_NAME}{TEMPORARY_SUFFIX}"));
    let restored = match open_snapshot(snapshot) {
        Ok(Some(from)) => fill(from, dir, &temporary).map_err(|defect| defect.of_snapshot(snapshot, dir)),
        Ok(None) => Err(OpenError::EtcdSnapshot { file: snapshot.to_owned() }),
        Err(source) => Err(OpenError::Io { dir: snapshot.to_owned(), source }),
    };
    if restored.is_err() {
        let _ = fs::remove_file(&temporary);
        if made {
            let _ = fs::remove_dir(dir);
        }
    }
    restored
}

/// Opens a snapshot; `None` if it is one of etcd.
fn open_snapshot(snapshot: &Path) -> io::Result<Option<File>> {
    let file = File::open(snapshot)?;
    Ok(if is_etcd_database(&file)? { None } else { Some(file) })
}

fn fill(mut from: File, dir: &Path, temporary: &Path) -> Result<(), DatabaseDefect> {
    let DatabaseExtent { database: len, .. } = extent(&from)?;
    io::Seek::rewind(&mut from)?;
    let mut options = OpenOptions::new();
    let mut file = options.read(true).write(true).create(true).truncate(true).mode(0o600).open(temporary)?;
    io::copy(&mut from.take(len), &mut file)?;
    let opened = check(DataFile::on_probation(file.try_clone()?, len, None), None)?;
    assign_identity(&opened.database).map_err(io::Error::other)?;
    drop(opened);
    file.sync_all()?;
    remove_acknowledged(dir)?;
    Ok(publish(temporary, dir)?)
}

/// Returns whether the file is a database of etcd, which is bbolt with a magic number in the first page.
fn is_etcd_database(file: &File) -> io::Result<bool> {
    let mut magic = [0; 4];
    match std::os::unix::fs::FileExt::read_exact_at(file, &mut magic, 16) {
        Ok(()) => Ok(u32::from_le_bytes(magic) == 0xED0C_DAED),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes the record of acknowledged commits, which does not apply to a store that replaces the old one.
fn remove_acknowledged(dir: &Path) -> io::Result<()> {
    match fs::remove_file(dir.join(acknowledged::ACKNOWLEDGED_FILE_NAME)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

enum DirectoryContent {
    Nothing,
    Store,
    Foreign,
}

fn inspect(dir: &Path) -> io::Result<DirectoryContent> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(DirectoryContent::Nothing),
        entries => entries?,
    };
    let mut foreign = false;
    for entry in entries {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        if name == DATABASE_FILE_NAME {
            return Ok(DirectoryContent::Store);
        }
        let ours = is_temporary(&name)
            || name == disk_space::RESERVE_FILE_NAME
            || name == acknowledged::ACKNOWLEDGED_FILE_NAME;
        foreign |= name != "lost+found" && !ours;
    }
    Ok(if foreign { DirectoryContent::Foreign } else { DirectoryContent::Nothing })
}

fn is_temporary(name: &str) -> bool {
    name.starts_with(DATABASE_FILE_NAME) && name.ends_with(TEMPORARY_SUFFIX)
}

fn remove_leftovers(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if is_temporary(&entry.file_name().to_string_lossy()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Creates a new, empty file with a unique name for an unfinished database.
pub fn temporary(dir: &Path) -> io::Result<(PathBuf, File)> {
    let path = dir.join(format!("{DATABASE_FILE_NAME}.{:016x}{TEMPORARY_SUFFIX}", rand::random::<u64>()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    Ok((path, file))
}

/// Puts a finished database in place atomically: afterwards either the old or the new one exists, complete.
fn publish(temporary: &Path, dir: &Path) -> io::Result<()> {
    put_in_place(temporary, dir)?;
    sync(dir)
}

pub fn put_in_place(temporary: &Path, dir: &Path) -> io::Result<()> {
    fs::rename(temporary, dir.join(DATABASE_FILE_NAME))
}

/// Makes the names in a directory durable.
pub fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Creates a store under a temporary name first, so that a crash in between does not look like a corrupt store.
fn create(dir: &Path) -> io::Result<()> {
    let (path, file) = temporary(dir)?;
    if let Err(fault) = create_database(&file) {
        let _ = fs::remove_file(&path);
        return Err(io::Error::other(fault));
    }
    remove_acknowledged(dir)?;
    publish(&path, dir)
}

fn create_database(file: &File) -> Result<(), StorageFault> {
    let database = builder().create_with_backend(DataFile::trusted(file.try_clone()?, None))?;
    initialize(&database)?;
    drop(database);
    Ok(file.sync_all()?)
}

pub fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

/// Locks the database for this process. Defragmentation may have replaced the file between opening and locking it, so
/// the inode is checked again.
fn lock(file: &File, path: &Path) -> Result<(), DatabaseDefect> {
    file.try_lock().map_err(|error| match error {
        fs::TryLockError::WouldBlock => DatabaseDefect::InUse,
        fs::TryLockError::Error(source) => DatabaseDefect::Io(source),
    })?;
    let locked = file.metadata()?;
    let named = fs::metadata(path)?;
    if (locked.dev(), locked.ino()) == (named.dev(), named.ino()) {
        Ok(())
    } else {
        Err(DatabaseDefect::InUse)
    }
}

/// A defect of a file, independent of whether it is a data directory or a snapshot.
enum DatabaseDefect {
    Io(io::Error),
    InUse,
    Corrupt(String),
    Newer(u32),
    Foreign,
    Lost { revision: i64, found: i64 },
}

impl From<io::Error> for DatabaseDefect {
    fn from(error: io::Error) -> DatabaseDefect {
        DatabaseDefect::Io(error)
    }
}

impl DatabaseDefect {
    fn of_directory(self, dir: &Path) -> OpenError {
        let dir = dir.to_owned();
        match self {
            DatabaseDefect::Io(source) => OpenError::Io { dir, source },
            DatabaseDefect::InUse => OpenError::InUse { dir },
            DatabaseDefect::Corrupt(reason) => OpenError::Corrupt { dir, reason },
            DatabaseDefect::Newer(format) => OpenError::NewerFormat { dir, format },
            DatabaseDefect::Foreign => OpenError::Foreign { dir },
            DatabaseDefect::Lost { revision, found } => OpenError::Lost { dir, revision, found },
        }
    }

    fn of_snapshot(self, file: &Path, dir: &Path) -> OpenError {
        let file = file.to_owned();
        match self {
            DatabaseDefect::Corrupt(reason) => OpenError::Snapshot { file, reason },
            DatabaseDefect::Foreign => {
                OpenError::Snapshot { file, reason: "it is a database of something else".to_owned() }
            }
            DatabaseDefect::Newer(format) => OpenError::NewerFormat { dir: file, format },
            other => other.of_directory(dir),
        }
    }

    fn into_fault(self) -> StorageFault {
        match self {
            DatabaseDefect::Io(error) => StorageFault::Io(error),
            other => StorageFault::Io(io::Error::other(other.of_directory(Path::new("the data directory")))),
        }
    }
}

/// The part of a file that is the database.
struct DatabaseExtent {
    database: u64,
    /// Whether the database is followed by the valid checksum of a snapshot.
    is_snapshot: bool,
}

fn extent(file: &File) -> Result<DatabaseExtent, DatabaseDefect> {
    let len = file.metadata()?.len();
    match len % 512 {
        CHECKSUM_BYTES => {}
        0 => return Ok(DatabaseExtent { database: len, is_snapshot: false }),
        _ => {
            let reason = "it was cut short: it ends in the middle of a page";
            return Err(DatabaseDefect::Corrupt(reason.to_owned()));
        }
    }
    let body = len - CHECKSUM_BYTES;
    let sum = checksum(file, body)?;
    let mut stored = [0; CHECKSUM_BYTES as usize];
    std::os::unix::fs::FileExt::read_exact_at(file, &mut stored, body)?;
    if sum != stored {
        return Err(DatabaseDefect::Corrupt("the snapshot's checksum does not match".to_owned()));
    }
    Ok(DatabaseExtent { database: body, is_snapshot: true })
}

/// Returns the SHA-256 of the first `len` bytes.
pub fn checksum(mut file: &File, len: u64) -> io::Result<[u8; CHECKSUM_BYTES as usize]> {
    io::Seek::seek(&mut file, io::SeekFrom::Start(0))?;
    let mut digest = Sha256::new();
    let mut rest = file.take(len);
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match rest.read(&mut buffer)? {
            0 => return Ok(digest.finalize().into()),
            n => digest.update(&buffer[..n]),
        }
    }
}

/// Opens the database in a file and reads all of it once; only after that may the file be written.
fn check(file: DataFile, mark: Option<CommitMark>) -> Result<OpenedStore, DatabaseDefect> {
    if file.file().metadata()?.len() == 0 {
        return Err(DatabaseDefect::Corrupt("the file is empty".to_owned()));
    }
    // redb trusts the numbers in its own header; a panic that they cause must not end the process.
    let attempt = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| open_database(file.clone())));
    let (database, recovery) = match attempt {
        Ok(Ok(opened)) => opened,
        Ok(Err(DatabaseError::DatabaseAlreadyOpen)) => return Err(DatabaseDefect::InUse),
        Ok(Err(error)) => return Err(DatabaseDefect::Corrupt(error.to_string())),
        Err(_) => return Err(DatabaseDefect::Corrupt("its structure makes no sense".to_owned())),
    };
    let (identity, state, auth) = match read_meta(&database) {
        Ok(MetaTable::Ours(identity, state, auth)) => (identity, state, Arc::new(auth)),
        Ok(MetaTable::Newer(format)) => return Err(DatabaseDefect::Newer(format)),
        Ok(MetaTable::None) => return Err(DatabaseDefect::Foreign),
        Err(fault) => return Err(DatabaseDefect::Corrupt(fault.to_string())),
    };
    let mark = mark.filter(|mark| mark.cluster == identity.cluster);
    if let Some(mark) = mark
        && mark.sequence > state.sequence
    {
        return Err(DatabaseDefect::Lost { revision: mark.revision, found: state.revision });
    }
    let index = read_index(&database).map_err(|fault| DatabaseDefect::Corrupt(fault.to_string()))?;
    file.trust()?;
    recovery.log(state, mark);
    Ok(OpenedStore { database, files: None, identity, state, auth, index })
}

/// The recovery that redb performed for a file that was not closed cleanly.
#[derive(Clone, Copy, Default)]
struct RecoveryReport {
    unclean: bool,
    /// Whether the newest commit was incomplete and redb fell back to the previous one.
    went_back: bool,
}

impl RecoveryReport {
    fn log(&self, state: StoreState, mark: Option<CommitMark>) {
        let revision = state.revision;
        if self.went_back && mark.is_none_or(|mark| mark.sequence < state.sequence) {
            tracing::warn!(
                "the store was not closed cleanly and its newest commit is incomplete: went back to the commit before it, \
                 revision {revision}; a write that was acknowledged within the second before a power cut may be missing"
            );
        } else if self.went_back {
            tracing::info!(
                "the store was not closed cleanly; an unacknowledged commit was dropped, revision {revision} is the newest"
            );
        } else if self.unclean {
            tracing::info!(
                "the store was not closed cleanly; checked and found whole at revision {revision}"
            );
        }
    }
}

fn open_database(file: DataFile) -> Result<(Database, RecoveryReport), DatabaseError> {
    /// Progress that redb reports only when it has found the newest commit damaged.
    const FALLBACK_PROGRESS: f64 = 0.3;
    let recovery = Arc::new(Mutex::new(RecoveryReport::default()));
    let reported = recovery.clone();
    let mut builder = builder();
    builder.set_repair_callback(move |session| {
        let mut report = reported.lock().unwrap_or_else(PoisonError::into_inner);
        report.unclean = true;
        report.went_back |= (session.progress() - FALLBACK_PROGRESS).abs() < 0.01;
    });
    let mut database = builder.create_with_backend(file)?;
    let recovery = *recovery.lock().unwrap_or_else(PoisonError::into_inner);
    if !database.check_integrity()? {
        return Err(redb::StorageError::Corrupted("checksums do not match".to_owned()).into());
    }
    Ok((database, recovery))
}

/// Reads the index from the history; the newest version of each key is the last one there.
fn read_index(database: &Database) -> Result<VersionIndex, StorageFault> {
    let mut index = VersionIndex::default();
    for row in database.begin_read()?.open_table(HISTORY_TABLE)?.iter()? {
        let (key, bytes) = row?;
        let at = CommitRevision::from_key(key.value());
        let entry = decode_history(at, bytes.value())?;
        index.set(entry.key, LatestVersion { at, deleted: entry.version.deleted });
    }
    Ok(index)
}

enum MetaTable {
    Ours(StoreIdentity, StoreState, AuthState),
    Newer(u32),
    None,
}

fn read_meta(database: &Database) -> Result<MetaTable, StorageFault> {
    let transaction = database.begin_read()?;
    let table = match transaction.open_table(META_TABLE) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(MetaTable::None),
        table => table?,
    };
    let format = table.get("format")?.ok_or(StorageFault::Record)?;
    let format = u32::from_le_bytes(format.value().try_into().map_err(|_| StorageFault::Record)?);
    if format > FORMAT_VERSION {
        return Ok(MetaTable::Newer(format));
    }
    let identity = table.get("identity")?.ok_or(StorageFault::Record)?;
    let [cluster, member] = decode_numbers(identity.value())?;
    let state = table.get("state")?.ok_or(StorageFault::Record)?;
    let [revision, compacted, collected, in_use, no_space] = decode_numbers(state.value())?.map(|n| n as i64);
    let sequence = match table.get("sequence")? {
        Some(sequence) => u64::from_le_bytes(sequence.value().try_into().map_err(|_| StorageFault::Record)?),
        // Written before commits were counted.
        None => 0,
    };
    let state = StoreState { revision, compacted, collected, in_use, no_space: no_space != 0, sequence };
    let auth = match table.get("auth")? {
        Some(auth) => AuthState::decode(auth.value()).map_err(|_| StorageFault::Record)?,
        None => AuthState::default(),
    };
    Ok(MetaTable::Ours(StoreIdentity { cluster, member }, state, auth))
}

fn decode_numbers<const N: usize>(bytes: &[u8]) -> Result<[u64; N], StorageFault> {
    let (words, []) = bytes.as_chunks::<8>() else { return Err(StorageFault::Record) };
    let words: &[[u8; 8]; N] = words.try_into().map_err(|_| StorageFault::Record)?;
    Ok(words.map(u64::from_le_bytes))
}

fn initialize(database: &Database) -> Result<(StoreIdentity, StoreState), StorageFault> {
    let identity = StoreIdentity::new();
    let state =
        StoreState { revision: 1, compacted: -1, collected: -1, in_use: 0, no_space: false, sequence: 0 };
    let transaction = database.begin_write()?;
    transaction.open_table(HISTORY_TABLE)?;
    transaction.open_table(LEASES_TABLE)?;
    transaction.open_table(LEASE_KEYS_TABLE)?;
    write_identity(&transaction, identity)?;
    write_state(&transaction, state)?;
    transaction.commit()?;
    Ok((identity, state))
}

fn assign_identity(database: &Database) -> Result<(), StorageFault> {
    let transaction = database.begin_write()?;
    write_identity(&transaction, StoreIdentity::new())?;
    Ok(transaction.commit()?)
}

pub fn write_identity(
    transaction: &redb::WriteTransaction,
    identity: StoreIdentity,
) -> Result<(), StorageFault> {
    let mut table = transaction.open_table(META_TABLE)?;
    table.insert("format", FORMAT_VERSION.to_le_bytes().as_slice())?;
    let words = [identity.cluster, identity.member].map(u64::to_le_bytes);
    table.insert("identity", words.as_flattened())?;
    Ok(())
}

pub fn write_state(transaction: &redb::WriteTransaction, state: StoreState) -> Result<(), StorageFault> {
    let StoreState { revision, compacted, collected, in_use, no_space, sequence } = state;
    let words = [revision, compacted, collected, in_use, i64::from(no_space)].map(i64::to_le_bytes);
    let mut table = transaction.open_table(META_TABLE)?;
    table.insert("state", words.as_flattened())?;
    table.insert("sequence", sequence.to_le_bytes().as_slice())?;
    Ok(())
}

pub fn write_auth(transaction: &redb::WriteTransaction, auth: &AuthState) -> Result<(), StorageFault> {
    transaction.open_table(META_TABLE)?.insert("auth", auth.encode_to_vec().as_slice())?;
    Ok(())
}
