//! Reads resources from files, directories and standard input.

use crate::field_names;
use crate::kind_word::CLI_KINDS;
use crate::suggestion;
use serde_json::Value;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use tortie_model::object::DecodeError;
use tortie_model::{API_VERSION, Resource, codec};

#[derive(Debug, thiserror::Error)]
pub enum InputError {
    #[error("open {path}: {}", os_message(.error))]
    Unreadable { path: String, error: io::Error },
    #[error("{0}")]
    Document(String),
    #[error("no resources specified in file {0}")]
    EmptyFile(String),
    #[error("no resources specified in directory {0}")]
    EmptyDirectory(String),
    #[error("no resources specified")]
    Nothing,
}

impl InputError {
    /// Returns whether the only problem is that the input contains no resources.
    pub fn is_empty(&self) -> bool {
        matches!(self, InputError::EmptyFile(_) | InputError::EmptyDirectory(_) | InputError::Nothing)
    }
}

/// Returns the message of the operating system for an error, without the error number that Rust appends.
fn os_message(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split_once(" (os error").map_or(text.as_str(), |(words, _)| words);
    let mut chars = text.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

/// The kinds that an input may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptedKinds {
    /// Those that the command line manages.
    Managed,
    /// Also those that only programs write, such as IPAMBlock.
    All,
}

/// Returns every resource in a file, a directory or standard input, in order. No resources is an error unless
/// `skip_empty`.
pub fn resources(path: &Path, recursive: bool, skip_empty: bool) -> Result<Vec<Resource>, InputError> {
    resources_of(AcceptedKinds::Managed, path, recursive, skip_empty)
}

/// Returns every resource like [`resources`], with a choice of the accepted kinds.
pub fn resources_of(
    kinds: AcceptedKinds,
    path: &Path,
    recursive: bool,
    skip_empty: bool,
) -> Result<Vec<Resource>, InputError> {
    let shown = path.display().to_string();
    if shown == "-" {
        return parse_file(kinds, &read_stdin()?, &shown, skip_empty);
    }
    if !fs::metadata(path).map_err(|error| unreadable(path, error))?.is_dir() {
        return parse_file(kinds, &read(path)?, &shown, skip_empty);
    }
    let mut all = Vec::new();
    for file in walk(path, recursive)? {
        let name = file.display().to_string();
        let found = parse_file(kinds, &read(&file)?, &name, skip_empty).map_err(|error| match error {
            InputError::Document(text) => InputError::Document(format!("{name}: {text}")),
            other => other,
        })?;
        all.extend(found);
    }
    if all.is_empty() && !skip_empty { Err(InputError::EmptyDirectory(shown)) } else { Ok(all) }
}

fn unreadable(path: &Path, error: io::Error) -> InputError {
    InputError::Unreadable { path: path.display().to_string(), error }
}

fn parse_file(
    kinds: AcceptedKinds,
    bytes: &[u8],
    name: &str,
    skip_empty: bool,
) -> Result<Vec<Resource>, InputError> {
    let found = parse_kinds(kinds, bytes)?;
    if found.is_empty() && !skip_empty { Err(InputError::EmptyFile(name.to_owned())) } else { Ok(found) }
}

/// Parses each document of a text on its own. Fails if the text cannot be split into documents.
pub fn parse_documents(bytes: &[u8]) -> Result<Vec<Result<Resource, InputError>>, InputError> {
    let documents = codec::documents(bytes).map_err(|error| InputError::Document(error.to_string()))?;
    Ok(documents.iter().map(|document| parse_document(AcceptedKinds::Managed, document)).collect())
}

/// Parses the resources in the text of a file.
pub fn parse(bytes: &[u8]) -> Result<Vec<Resource>, InputError> {
    parse_kinds(AcceptedKinds::Managed, bytes)
}

fn parse_kinds(kinds: AcceptedKinds, bytes: &[u8]) -> Result<Vec<Resource>, InputError> {
    let documents = codec::documents(bytes).map_err(|error| InputError::Document(error.to_string()))?;
    documents.iter().map(|document| parse_document(kinds, document)).collect()
}

fn parse_document(kinds: AcceptedKinds, document: &Value) -> Result<Resource, InputError> {
    decode_any_case(kinds, document).map_err(|error| {
        let hint = suggestion::hint(document, &error);
        InputError::Document(format!("{error}{hint}"))
    })
}

/// Decodes a document. Only if it has unknown names, they are compared again without regard to case.
fn decode_any_case(kinds: AcceptedKinds, document: &Value) -> Result<Resource, DecodeError> {
    let error = match decode(kinds, document.clone()) {
        Err(error @ (DecodeError::UnknownField(_) | DecodeError::UnknownKind { .. })) => error,
        decoded => return decoded,
    };
    let mut renamed = document.clone();
    if field_names::match_document(&mut renamed) { decode(kinds, renamed) } else { Err(error) }
}

fn decode(kinds: AcceptedKinds, document: Value) -> Result<Resource, DecodeError> {
    let resource = Resource::from_user(document)?;
    let kind = resource.kind();
    if kinds == AcceptedKinds::All || CLI_KINDS.contains(&kind) {
        return Ok(resource);
    }
    Err(DecodeError::UnknownKind { kind: kind.to_string(), version: API_VERSION.to_owned() })
}

fn read(path: &Path) -> Result<Vec<u8>, InputError> {
    fs::read(path).map_err(|error| unreadable(path, error))
}

/// Reads a file, or standard input for `-`.
pub fn read_bytes(path: &Path) -> Result<Vec<u8>, InputError> {
    if path == Path::new("-") { read_stdin() } else { read(path) }
}

fn read_stdin() -> Result<Vec<u8>, InputError> {
    let mut bytes = Vec::new();
    io::stdin().read_to_end(&mut bytes).map_err(|error| unreadable(Path::new("-"), error))?;
    Ok(bytes)
}

/// Returns the files of a directory that may contain resources, sorted by name; with `recursive`, the files
/// of sub-directories follow in their sorted position.
fn walk(directory: &Path, recursive: bool) -> Result<Vec<PathBuf>, InputError> {
    let mut files = Vec::new();
    let mut pending = vec![directory.to_owned()];
    while let Some(path) = pending.pop() {
        // Symbolic links to directories are not followed, because they may form cycles.
        let is_dir =
            fs::symlink_metadata(&path).map_err(|e| unreadable(&path, e))?.is_dir() || path == directory;
        if !is_dir {
            let extension = path.extension().and_then(|e| e.to_str());
            if matches!(extension, Some("yaml" | "yml" | "json")) && path.is_file() {
                files.push(path);
            }
        } else if recursive || path == directory {
            let entries = fs::read_dir(&path).map_err(|e| unreadable(&path, e))?;
            let mut children = entries
                .map(|e| e.map(|e| e.path()))
                .collect::<io::Result<Vec<_>>>()
                .map_err(|e| unreadable(&path, e))?;
            // `pending` is a stack: the last path pushed is processed first.
            children.sort();
            pending.extend(children.into_iter().rev());
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for file in ["b.yaml", "a.json", "c.txt", "a/z.yml", "a/sub/y.yaml", "d.yml"] {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        dir
    }

    fn names(dir: &tempfile::TempDir, recursive: bool) -> Vec<String> {
        let files = walk(dir.path(), recursive).unwrap();
        files.iter().map(|f| f.strip_prefix(dir.path()).unwrap().display().to_string()).collect()
    }

    #[test]
    fn a_directory_is_walked_in_order_of_names() {
        let dir = tree();
        assert_eq!(names(&dir, false), ["a.json", "b.yaml", "d.yml"]);
        assert_eq!(names(&dir, true), ["a/sub/y.yaml", "a/z.yml", "a.json", "b.yaml", "d.yml"]);
    }

    #[test]
    fn missing_and_empty_inputs_say_what_they_are() {
        let dir = tree();
        let error = |path: &Path| resources(path, false, false).unwrap_err().to_string();
        let at = |name: &str| dir.path().join(name);
        assert_eq!(
            error(&at("nosuch")),
            format!("open {}: no such file or directory", at("nosuch").display())
        );
        assert_eq!(
            error(&at("b.yaml")),
            format!("no resources specified in file {}", at("b.yaml").display())
        );
        assert_eq!(
            error(&at("a/sub")),
            format!("no resources specified in file {}", at("a/sub/y.yaml").display())
        );
        fs::remove_file(at("a/sub/y.yaml")).unwrap();
        assert_eq!(
            error(&at("a/sub")),
            format!("no resources specified in directory {}", at("a/sub").display())
        );
        assert!(resources(&at("a/sub"), true, true).unwrap().is_empty());
    }
}
