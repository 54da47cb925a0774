//! Finds the module files of a kernel and the dependencies between them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Debug)]
pub struct KernelModules {
    files: BTreeMap<String, PathBuf>,
    built_in: BTreeSet<String>,
}

impl KernelModules {
    /// Scans `root`, which is `lib/modules/VERSION`.
    pub fn read(root: &Path) -> KernelModules {
        let mut modules = KernelModules { files: BTreeMap::new(), built_in: BTreeSet::new() };
        modules.collect(&root.join("kernel"));
        let built_in = std::fs::read_to_string(root.join("modules.builtin")).unwrap_or_default();
        modules.built_in.extend(built_in.lines().filter_map(|line| name_of(Path::new(line))));
        modules
    }

    fn collect(&mut self, dir: &Path) {
        let entries = std::fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        for entry in entries {
            let path = entry.expect("a directory that was opened can be read").path();
            if path.is_dir() {
                self.collect(&path);
            } else if let Some(name) = name_of(&path) {
                self.files.insert(name, path);
            }
        }
    }

    /// Returns the contents of the wanted modules and their dependencies in load order.
    pub fn in_order(&self, wanted: &[&str]) -> Vec<(String, Vec<u8>)> {
        let (mut ordered, mut seen) = (Vec::new(), BTreeSet::new());
        for name in wanted {
            self.add(&plain(name), "the tests", &mut ordered, &mut seen);
        }
        ordered
    }

    fn add(&self, name: &str, by: &str, ordered: &mut Vec<(String, Vec<u8>)>, seen: &mut BTreeSet<String>) {
        if self.built_in.contains(name) || !seen.insert(name.to_owned()) {
            return;
        }
        let path =
            self.files.get(name).unwrap_or_else(|| panic!("{by} need the module {name}: it is not there"));
        let contents = unpacked(path);
        for needed in needs(&contents) {
            // Optional dependencies (softdep) may be missing.
            if !needed.optional || self.files.contains_key(&needed.name) {
                self.add(&needed.name, name, ordered, seen);
            }
        }
        ordered.push((name.to_owned(), contents));
    }
}

#[derive(Debug, PartialEq, Eq)]
struct ModuleDependency {
    name: String,
    optional: bool,
}

/// Parses the dependencies from a module's modinfo: NUL-terminated `depends=a,b` and `softdep=pre: c`.
fn needs(module: &[u8]) -> Vec<ModuleDependency> {
    let texts = |key: &'static [u8]| {
        let places = module.windows(key.len() + 1).enumerate();
        let starts = places.filter(move |(_, window)| window[0] == 0 && window[1..] == *key);
        starts.map(move |(at, _)| {
            let text: Vec<u8> =
                module[at + 1 + key.len()..].iter().copied().take_while(|byte| *byte != 0).collect();
            String::from_utf8_lossy(&text).into_owned()
        })
    };
    let mut needed = Vec::new();
    for text in texts(b"depends=") {
        let names = text.split(',').filter(|name| !name.is_empty());
        needed.extend(names.map(|name| ModuleDependency { name: plain(name), optional: false }));
    }
    for text in texts(b"softdep=") {
        let before = text.split("post:").next().unwrap_or_default().replace("pre:", " ");
        needed.extend(
            before.split_whitespace().map(|name| ModuleDependency { name: plain(name), optional: true }),
        );
    }
    needed
}

/// Normalizes a module name: names are written with `-` or `_`.
fn plain(name: &str) -> String {
    name.replace('-', "_")
}

fn name_of(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    name.split_once(".ko").map(|(name, _)| plain(name))
}

/// Reads a module and decompresses it if needed: newer Debian releases compress modules.
fn unpacked(path: &Path) -> Vec<u8> {
    let program = match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => return std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())),
    };
    let output = Command::new(program).args(["-d", "-c"]).arg(path).output();
    let output = output.unwrap_or_else(|error| panic!("{program} is needed to unpack modules: {error}"));
    assert!(output.status.success(), "{program} {}: {output:?}", path.display());
    output.stdout
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(text: &str) -> Vec<u8> {
        format!("\x7fELF\0license=GPL\0{text}\0name=x\0").into_bytes()
    }

    #[test]
    fn what_a_module_needs_comes_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        std::fs::create_dir_all(root.join("kernel/net")).unwrap();
        for (name, text) in [
            ("ipip", "depends=ip_tunnel,tunnel4"),
            ("ip_tunnel", "depends="),
            ("tunnel4", "depends=xfrm-base\0softdep=pre: fast missing post: late"),
            ("fast", "depends="),
            ("late", "depends="),
        ] {
            std::fs::write(root.join(format!("kernel/net/{name}.ko")), module(text)).unwrap();
        }
        std::fs::write(root.join("modules.builtin"), "kernel/net/xfrm_base.ko\n").unwrap();
        let modules = KernelModules::read(root);
        let names: Vec<String> =
            modules.in_order(&["ipip", "ip-tunnel"]).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["ip_tunnel", "fast", "tunnel4", "ipip"]);
    }
}
