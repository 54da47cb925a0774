//! Checks that files, modules and types that the architecture documentation names in back ticks exist. Paths are
//! relative to the root of the repository, to `crates` or, in the README of a crate, to that crate.

use crate::{read, repository};
use regex::Regex;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// A text with a slash and one of these extensions is a path.
const EXTENSIONS: [&str; 8] = ["json", "md", "proto", "rs", "svg", "toml", "txt", "yaml"];
/// A text with a slash that begins with one of these directories, or with the name of a crate, is a path.
const DIRECTORIES: [&str; 9] =
    ["crates", "deploy", "docs", "examples", "fuzz", "packaging", "scripts", "src", "tests"];

#[derive(Debug, PartialEq, Eq)]
enum ReferenceCheck {
    NotAReference,
    Exists,
    /// The reason why the reference is wrong.
    Missing(String),
}

/// Returns the names of the crates, which are the names of their directories.
fn crate_names(root: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap());
    entries
        .filter(|entry| entry.path().join("Cargo.toml").is_file())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect()
}

/// Returns the texts in back ticks outside code blocks, with their line numbers.
fn quotations(page: &str) -> Vec<(usize, String)> {
    let quoted = Regex::new("`([^`\n]+)`").unwrap();
    let mut found = Vec::new();
    let mut is_code = false;
    for (index, line) in page.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            found.extend(quoted.captures_iter(line).map(|text| (index + 1, text[1].to_owned())));
        }
    }
    found
}

/// Expands `src/{a,b}.rs` to `src/a.rs` and `src/b.rs`.
fn expand_braces(text: &str) -> Vec<String> {
    let Some((head, rest)) = text.split_once('{') else { return vec![text.to_owned()] };
    let Some((choices, tail)) = rest.split_once('}') else { return vec![text.to_owned()] };
    choices.split(',').map(|choice| format!("{head}{}{tail}", choice.trim())).collect()
}

fn is_path(crates: &BTreeSet<String>, text: &str) -> bool {
    let Some((first, _)) = text.split_once('/') else { return false };
    let is_plain = text.chars().all(|letter| letter.is_ascii_alphanumeric() || "_-./".contains(letter));
    if first.is_empty() || !is_plain {
        return false;
    }
    let extension = Path::new(text).extension().and_then(OsStr::to_str);
    extension.is_some_and(|extension| EXTENSIONS.contains(&extension))
        || DIRECTORIES.contains(&first)
        || crates.contains(first)
}

fn is_identifier(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

fn path_exists(root: &Path, owner: Option<&str>, text: &str) -> bool {
    let crates = root.join("crates");
    root.join(text).exists()
        || crates.join(text).exists()
        || owner.is_some_and(|owner| crates.join(owner).join(text).exists())
}

/// Returns the source files of a module and of its submodules; none if the module does not exist.
fn source_files(module: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![module.with_extension("rs"), module.to_owned()];
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            pending.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.is_file() && path.extension() == Some(OsStr::new("rs")) {
            found.push(path);
        }
    }
    found
}

fn defines(module: &Path, name: &str) -> bool {
    let definition = Regex::new(&format!(r"\b(struct|enum|trait|type|fn|const) {name}\b")).unwrap();
    source_files(module).iter().any(|file| definition.is_match(&std::fs::read_to_string(file).unwrap()))
}

/// Checks the modules, and the type, constant or function after them. Segments after a type are not checked.
fn check_item(root: &Path, crate_name: &str, segments: &[&str], is_function: bool) -> ReferenceCheck {
    let mut module = root.join("crates").join(crate_name).join("src");
    for (index, segment) in segments.iter().enumerate() {
        let is_last = index + 1 == segments.len();
        if segment.starts_with(char::is_uppercase) || (is_function && is_last) {
            if defines(&module, segment) {
                return ReferenceCheck::Exists;
            }
            let module = module.strip_prefix(root).unwrap().display();
            return ReferenceCheck::Missing(format!("{module} does not define {segment}"));
        }
        module.push(segment);
        if source_files(&module).is_empty() {
            let module = module.strip_prefix(root).unwrap().display();
            return ReferenceCheck::Missing(format!("there is no module {module}"));
        }
    }
    ReferenceCheck::Exists
}

/// Checks one text in back ticks. `owner` is the crate whose README contains it.
fn check(root: &Path, crates: &BTreeSet<String>, owner: Option<&str>, text: &str) -> ReferenceCheck {
    if is_path(crates, text) {
        if path_exists(root, owner, text) {
            return ReferenceCheck::Exists;
        }
        return ReferenceCheck::Missing("there is no such file or directory".to_owned());
    }
    let name = text.strip_suffix("()").unwrap_or(text);
    let segments: Vec<&str> = name.split("::").collect();
    let crate_name = segments[0].replace('_', "-");
    let is_item = segments.len() > 1 && segments.iter().all(|segment| is_identifier(segment));
    if !is_item || !crates.contains(&crate_name) {
        return ReferenceCheck::NotAReference;
    }
    check_item(root, &crate_name, &segments[1..], name != text)
}

#[test]
fn every_path_and_module_exists() {
    let root = repository();
    let crates = crate_names(root);
    let mut pages = vec!["ARCHITECTURE.md".to_owned(), "CONTRIBUTING.md".to_owned()];
    pages.extend(crates.iter().map(|name| format!("crates/{name}/README.md")));
    let mut wrong = Vec::new();
    let mut checked = 0;
    for page in pages {
        let owner = page.strip_prefix("crates/").and_then(|rest| rest.strip_suffix("/README.md"));
        for (line, quoted) in quotations(&read(&page)) {
            for text in expand_braces(&quoted) {
                match check(root, &crates, owner, &text) {
                    ReferenceCheck::NotAReference => {}
                    ReferenceCheck::Exists => checked += 1,
                    ReferenceCheck::Missing(reason) => wrong.push(format!("{page}:{line}: {text}: {reason}")),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 500, "only {checked} references were found");
}

#[test]
fn wrong_references_are_found() {
    let root = repository();
    let crates = crate_names(root);
    let of_store = |text: &str| check(root, &crates, Some("store"), text);
    for text in [
        "store/src/etcd/keys.rs",
        "crates/store/src/etcd",
        "src/no_such_file.rs",
        "store::etcd",
        "store::backend::etcd::NoSuchType",
        "store::no_such_function()",
    ] {
        assert!(matches!(of_store(text), ReferenceCheck::Missing(_)), "{text}");
    }
    for text in [
        "store/src/backend/etcd/keys/mod.rs",
        "src/backend/etcd",
        "deploy/",
        "store::backend::etcd",
        "store::StoreClient",
        "testkit::free_port()",
        "node::engine::EngineAction::Apply",
    ] {
        assert_eq!(of_store(text), ReferenceCheck::Exists, "{text}");
    }
    for text in ["projectcalico.org/v3", "/proc/sys/net", "kubectl apply -f deploy/", "FeedEvent::Put"] {
        assert_eq!(of_store(text), ReferenceCheck::NotAReference, "{text}");
    }
    assert!(matches!(check(root, &crates, None, "src/client.rs"), ReferenceCheck::Missing(_)));
}

#[test]
fn code_blocks_are_skipped_and_braces_expanded() {
    let page = "a `one` and `two/x.rs`\n```text\n`three`\n```\n`four`\n";
    let found = [(1, "one".to_owned()), (1, "two/x.rs".to_owned()), (5, "four".to_owned())];
    assert_eq!(quotations(page), found);
    assert_eq!(expand_braces("src/{a, b}.rs"), ["src/a.rs", "src/b.rs"]);
    assert_eq!(expand_braces("src/a.rs"), ["src/a.rs"]);
}
