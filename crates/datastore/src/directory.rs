//! The data directory: making one, finding one in order, and refusing every other, untouched.

use super::batch::{LEASES, State};
use super::fault::Fault;
use super::file::DataFile;
use super::index::{Index, Place};
use super::record::{Moment, decode_history};
use super::view::{HISTORY, LEASE_KEYS};
use redb::{Builder, Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition, TableError};
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const META: TableDefinition<&str, &[u8]> = TableDefinition::new("tortie_datastore");
const FORMAT: u32 = 1;
/// The database inside a data directory.
pub const FILE_NAME: &str = "store.redb";
/// Files in the making carry this ending; what a crash leaves of them is removed at the next start.
const TEMPORARY: &str = ".tmp";
/// A snapshot ends with the SHA-256 of what precedes it, as etcd's do.
pub const CHECKSUM_BYTES: u64 = 32;
/// Everything redb keeps in memory; the kernel's page cache does the rest.
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
    #[error("{dir} holds a corrupt database ({reason}); move {FILE_NAME} away and restore a snapshot")]
    Corrupt { dir: PathBuf, reason: String },
    #[error(
        "{dir} was written by a newer version (format {format}, this one knows {FORMAT}); use that version"
    )]
    NewerFormat { dir: PathBuf, format: u32 },
    #[error("cannot listen on {url}: {source}")]
    Listen { url: String, source: io::Error },
    #[error("cannot listen on {url}: another server answers there; stop it first, or name another address")]
    AddressInUse { url: String },
}

/// Who answers: fixed when a store is made, from nothing or from a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub cluster: u64,
    pub member: u64,
}

impl Identity {
    fn new() -> Identity {
        Identity { cluster: rand::random(), member: rand::random() }
    }
}

/// A database that is in order.
pub struct Opened {
    pub database: Database,
    pub file: Option<DataFile>,
    pub identity: Identity,
    pub state: State,
    pub index: Index,
}

pub fn open(dir: &Path) -> Result<Opened, OpenError> {
    let io_error = |source| OpenError::Io { dir: dir.to_owned(), source };
    match survey(dir).map_err(io_error)? {
        Found::Store => {}
        Found::Nothing => {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io_error)?;
            create(dir)?;
        }
        Found::Strangers => return Err(OpenError::Foreign { dir: dir.to_owned() }),
    }
    let path = dir.join(FILE_NAME);
    let file = OpenOptions::new().read(true).write(true).open(&path).map_err(io_error)?;
    lock(dir, &file, &path)?;
    let len = database_len(dir, &file)?;
    let opened = check(dir, DataFile::on_probation(file, len))?;
    remove_leftovers(dir).map_err(io_error)?;
    Ok(opened)
}

/// A store that lives in memory and goes with the process.
pub fn in_memory() -> Result<Opened, Fault> {
    let database =
        Builder::new().set_cache_size(1 << 20).create_with_backend(redb::backends::InMemoryBackend::new())?;
    let (identity, state) = initialize(&database)?;
    Ok(Opened { database, file: None, identity, state, index: Index::default() })
}

/// Makes a data directory from a snapshot. The directory must be empty or new. The store gets an identity of its own:
/// its revisions go on from the snapshot's, and clients that have seen others under the same numbers must notice.
pub fn restore(snapshot: &Path, dir: &Path) -> Result<(), OpenError> {
    let io_error = |source| OpenError::Io { dir: dir.to_owned(), source };
    match survey(dir).map_err(io_error)? {
        Found::Nothing => {}
        Found::Store | Found::Strangers => return Err(OpenError::NotEmpty { dir: dir.to_owned() }),
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io_error)?;
    let temporary = dir.join(format!("{FILE_NAME}{TEMPORARY}"));
    fs::copy(snapshot, &temporary).map_err(|source| OpenError::Io { dir: snapshot.to_owned(), source })?;
    let verdict = || -> Result<(), OpenError> {
        let file = OpenOptions::new().read(true).write(true).open(&temporary).map_err(io_error)?;
        let len = database_len(dir, &file)?;
        let opened = check(dir, DataFile::on_probation(file.try_clone().map_err(io_error)?, len))?;
        rename(&opened.database).map_err(|fault| io_error(io::Error::other(fault)))?;
        drop(opened);
        file.sync_all().map_err(io_error)
    }();
    if verdict.is_err() {
        let _ = fs::remove_file(&temporary);
        return verdict;
    }
    publish(&temporary, dir).map_err(io_error)
}

enum Found {
    Nothing,
    Store,
    Strangers,
}

fn survey(dir: &Path) -> io::Result<Found> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        entries => entries?,
    };
    let mut strangers = false;
    for entry in entries {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        if name == FILE_NAME {
            return Ok(Found::Store);
        }
        strangers |= name != "lost+found" && !is_temporary(&name);
    }
    Ok(if strangers { Found::Strangers } else { Found::Nothing })
}

fn is_temporary(name: &str) -> bool {
    name.starts_with(FILE_NAME) && name.ends_with(TEMPORARY)
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

/// A new, empty file for a database in the making. Its name is taken by nobody else.
pub fn temporary(dir: &Path) -> io::Result<(PathBuf, File)> {
    let path = dir.join(format!("{FILE_NAME}.{:016x}{TEMPORARY}", rand::random::<u64>()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    Ok((path, file))
}

/// Puts a finished database in its place; afterwards either the old or the new one is there, whole.
pub fn publish(temporary: &Path, dir: &Path) -> io::Result<()> {
    fs::rename(temporary, dir.join(FILE_NAME))?;
    File::open(dir)?.sync_all()
}

/// A store is made under another name first: a crash half-way must not look like a corrupt store.
fn create(dir: &Path) -> Result<(), OpenError> {
    let io_error = |source| OpenError::Io { dir: dir.to_owned(), source };
    let (path, file) = temporary(dir).map_err(io_error)?;
    let made = || -> Result<(), Fault> {
        let database = builder().create_with_backend(DataFile::trusted(file.try_clone()?))?;
        initialize(&database)?;
        drop(database);
        Ok(file.sync_all()?)
    }();
    if let Err(fault) = made {
        let _ = fs::remove_file(&path);
        return Err(io_error(io::Error::other(fault)));
    }
    publish(&path, dir).map_err(io_error)
}

pub fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

/// One process at a time. The name may have been given to another file (by defragmentation) between opening and
/// locking it, so look again.
fn lock(dir: &Path, file: &File, path: &Path) -> Result<(), OpenError> {
    let io_error = |source| OpenError::Io { dir: dir.to_owned(), source };
    let in_use = || OpenError::InUse { dir: dir.to_owned() };
    file.try_lock().map_err(|error| match error {
        fs::TryLockError::WouldBlock => in_use(),
        fs::TryLockError::Error(source) => io_error(source),
    })?;
    let (ours, named) = (file.metadata().map_err(io_error)?, fs::metadata(path).map_err(io_error)?);
    if (ours.dev(), ours.ino()) == (named.dev(), named.ino()) { Ok(()) } else { Err(in_use()) }
}

/// How much of the file is the database. A snapshot put in place by hand still carries its checksum, which must
/// match and is not part of it.
fn database_len(dir: &Path, file: &File) -> Result<u64, OpenError> {
    let io_error = |source| OpenError::Io { dir: dir.to_owned(), source };
    let len = file.metadata().map_err(io_error)?.len();
    if len % 512 != CHECKSUM_BYTES {
        return Ok(len);
    }
    let body = len - CHECKSUM_BYTES;
    let sum = checksum(file, body).map_err(io_error)?;
    let mut stored = [0; CHECKSUM_BYTES as usize];
    std::os::unix::fs::FileExt::read_exact_at(file, &mut stored, body).map_err(io_error)?;
    if sum != stored {
        let reason = "the snapshot's checksum does not match".to_owned();
        return Err(OpenError::Corrupt { dir: dir.to_owned(), reason });
    }
    Ok(body)
}

/// The SHA-256 of the first `len` bytes.
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

/// Opens the database behind a file and reads all of it once; only then may the file be written to.
fn check(dir: &Path, file: DataFile) -> Result<Opened, OpenError> {
    let corrupt = |reason: String| OpenError::Corrupt { dir: dir.to_owned(), reason };
    if file.file().metadata().map_err(|source| OpenError::Io { dir: dir.to_owned(), source })?.len() == 0 {
        return Err(corrupt("the file is empty".to_owned()));
    }
    // redb trusts the numbers in its own header; what they lead it into must not take the process down.
    let attempt = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| open_database(file.clone())));
    let database = match attempt {
        Ok(Ok(database)) => database,
        Ok(Err(DatabaseError::DatabaseAlreadyOpen)) => return Err(OpenError::InUse { dir: dir.to_owned() }),
        Ok(Err(error)) => return Err(corrupt(error.to_string())),
        Err(_) => return Err(corrupt("its structure makes no sense".to_owned())),
    };
    let (identity, state) = match read_meta(&database) {
        Ok(Meta::Ours(identity, state)) => (identity, state),
        Ok(Meta::Newer(format)) => return Err(OpenError::NewerFormat { dir: dir.to_owned(), format }),
        Ok(Meta::None) => return Err(OpenError::Foreign { dir: dir.to_owned() }),
        Err(fault) => return Err(corrupt(fault.to_string())),
    };
    let index = read_index(&database).map_err(|fault| corrupt(fault.to_string()))?;
    file.trust().map_err(|source| OpenError::Io { dir: dir.to_owned(), source })?;
    Ok(Opened { database, file: Some(file), identity, state, index })
}

fn open_database(file: DataFile) -> Result<Database, DatabaseError> {
    let mut database = builder().create_with_backend(file)?;
    match database.check_integrity()? {
        true => Ok(database),
        false => Err(redb::StorageError::Corrupted("checksums do not match".to_owned()).into()),
    }
}

/// The newest version of each key is the last one in the history.
fn read_index(database: &Database) -> Result<Index, Fault> {
    let mut index = Index::default();
    for row in database.begin_read()?.open_table(HISTORY)?.iter()? {
        let (key, bytes) = row?;
        let at = Moment::from_key(key.value());
        let entry = decode_history(at, bytes.value())?;
        index.set(entry.key, Place { at, deleted: entry.version.deleted });
    }
    Ok(index)
}

enum Meta {
    Ours(Identity, State),
    Newer(u32),
    None,
}

fn read_meta(database: &Database) -> Result<Meta, Fault> {
    let transaction = database.begin_read()?;
    let table = match transaction.open_table(META) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(Meta::None),
        table => table?,
    };
    let format = table.get("format")?.ok_or(Fault::Record)?;
    let format = u32::from_le_bytes(format.value().try_into().map_err(|_| Fault::Record)?);
    if format > FORMAT {
        return Ok(Meta::Newer(format));
    }
    let identity = table.get("identity")?.ok_or(Fault::Record)?;
    let [cluster, member] = numbers(identity.value())?;
    let state = table.get("state")?.ok_or(Fault::Record)?;
    let [revision, compacted, scrubbed, in_use, no_space] = numbers(state.value())?.map(|n| n as i64);
    let state = State { revision, compacted, scrubbed, in_use, no_space: no_space != 0 };
    Ok(Meta::Ours(Identity { cluster, member }, state))
}

fn numbers<const N: usize>(bytes: &[u8]) -> Result<[u64; N], Fault> {
    let (words, []) = bytes.as_chunks::<8>() else { return Err(Fault::Record) };
    let words: &[[u8; 8]; N] = words.try_into().map_err(|_| Fault::Record)?;
    Ok(words.map(u64::from_le_bytes))
}

fn initialize(database: &Database) -> Result<(Identity, State), Fault> {
    let identity = Identity::new();
    let state = State { revision: 1, compacted: -1, scrubbed: -1, in_use: 0, no_space: false };
    let transaction = database.begin_write()?;
    transaction.open_table(HISTORY)?;
    transaction.open_table(LEASES)?;
    transaction.open_table(LEASE_KEYS)?;
    write_identity(&transaction, identity)?;
    write_state(&transaction, state)?;
    transaction.commit()?;
    Ok((identity, state))
}

fn rename(database: &Database) -> Result<(), Fault> {
    let transaction = database.begin_write()?;
    write_identity(&transaction, Identity::new())?;
    Ok(transaction.commit()?)
}

pub fn write_identity(transaction: &redb::WriteTransaction, identity: Identity) -> Result<(), Fault> {
    let mut table = transaction.open_table(META)?;
    table.insert("format", FORMAT.to_le_bytes().as_slice())?;
    let words = [identity.cluster, identity.member].map(u64::to_le_bytes);
    table.insert("identity", words.as_flattened())?;
    Ok(())
}

pub fn write_state(transaction: &redb::WriteTransaction, state: State) -> Result<(), Fault> {
    let State { revision, compacted, scrubbed, in_use, no_space } = state;
    let words = [revision, compacted, scrubbed, in_use, i64::from(no_space)].map(i64::to_le_bytes);
    transaction.open_table(META)?.insert("state", words.as_flattened())?;
    Ok(())
}
