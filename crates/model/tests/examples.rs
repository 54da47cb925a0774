//! Checks the examples: each decodes strictly, gets its defaults, passes validation, and survives a round
//! trip through the store.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use tortie_model::{Kind, Resource, StoreKey, StoreValue, codec};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> =
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect();
    files.sort();
    files
}

fn read(file: &Path) -> Vec<Resource> {
    let documents =
        codec::documents(&fs::read(file).unwrap()).unwrap_or_else(|error| panic!("{file:?}: {error}"));
    documents
        .into_iter()
        .map(|document| Resource::from_user(document).unwrap_or_else(|error| panic!("{file:?}: {error}")))
        .collect()
}

fn key_of(resource: &Resource) -> StoreKey {
    let meta = resource.metadata();
    StoreKey::resource(resource.kind(), &meta.namespace, &meta.name)
}

/// Sets defaults, validates and encodes an example, and decodes it again.
fn survives(file: &Path, mut resource: Resource) {
    let written = resource.to_value();
    assert_eq!(
        Resource::from_user(written).unwrap(),
        resource,
        "{file:?}: what is written reads back the same"
    );
    resource.set_defaults();
    resource.validate().unwrap_or_else(|error| panic!("{file:?}: {error}"));
    let key = key_of(&resource);
    let bytes = StoreValue::from(resource.clone()).encode();
    let stored = StoreValue::decode(&key, &bytes).unwrap_or_else(|error| panic!("{file:?}: {error}"));
    assert_eq!(
        stored,
        StoreValue::Resource(resource.clone()),
        "{file:?}: what is stored reads back the same"
    );
    assert_eq!(stored.encode(), bytes, "{file:?}: what is read back is stored the same to the byte");
    let yaml = codec::to_yaml(&resource.to_value());
    let again = codec::documents(yaml.as_bytes()).unwrap();
    assert_eq!(
        Resource::from_user(again[0].clone()).unwrap(),
        resource,
        "{file:?}: what is printed reads back"
    );
}

#[test]
fn there_is_one_example_of_each_kind() {
    let mut kinds = BTreeSet::new();
    for file in files(&folder()) {
        let resources = read(&file);
        assert_eq!(resources.len(), 1, "{file:?}");
        let kind = resources[0].kind();
        assert_eq!(file.file_stem().and_then(|stem| stem.to_str()), Some(kind.plural()));
        assert!(kinds.insert(kind), "{file:?}");
        survives(&file, resources[0].clone());
    }
    assert_eq!(kinds.len(), Kind::ALL.len(), "every kind has an example");
}

#[test]
fn the_quick_start_is_accepted() {
    let files = files(&folder().join("quickstart"));
    assert_eq!(files.len(), 7);
    for file in files {
        for resource in read(&file) {
            survives(&file, resource);
        }
    }
}

/// Decoding rejects a field that the types do not have; a field that they drop would differ here.
#[test]
fn examples_keep_every_field_they_are_given() {
    for file in files(&folder()) {
        let document = codec::documents(&fs::read(&file).unwrap()).unwrap().remove(0);
        let written = Resource::from_user(document.clone()).unwrap().to_value();
        covers(&document, &written, &file.display().to_string());
    }
}

/// Asserts that every non-zero value in `given` is also in `written`.
fn covers(given: &serde_json::Value, written: &serde_json::Value, place: &str) {
    match given {
        serde_json::Value::Object(fields) => {
            for (key, value) in fields {
                let place = format!("{place}.{key}");
                match written.get(key) {
                    Some(written) => covers(value, written, &place),
                    None => assert!(is_zero(value), "{place}"),
                }
            }
        }
        serde_json::Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                covers(item, &written[index], &format!("{place}[{index}]"));
            }
        }
        scalar => assert_eq!(scalar, written, "{place}"),
    }
}

fn is_zero(value: &serde_json::Value) -> bool {
    matches!(value, serde_json::Value::Null | serde_json::Value::Bool(false))
        || value.as_str() == Some("")
        || value.as_i64() == Some(0)
}
