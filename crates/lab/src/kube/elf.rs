//! Shared libraries of programs for images: as the loader finds them for programs of this machine, or from the directory of Debian's
//! cross compiler for programs of another architecture.

use crate::error::{LabError, LabResult};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Offset of `e_machine` in the header of an ELF file.
const MACHINE_OFFSET: usize = 18;

/// Architecture of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramArchitecture {
    Amd64,
    Arm64,
}

/// A shared library, and its path in an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedLibrary {
    pub source: PathBuf,
    pub target: String,
}

impl ProgramArchitecture {
    /// Returns the architecture of this program.
    pub fn own() -> ProgramArchitecture {
        if cfg!(target_arch = "aarch64") { ProgramArchitecture::Arm64 } else { ProgramArchitecture::Amd64 }
    }

    /// Reads the architecture from the contents of an ELF file. Scripts have the own architecture.
    pub fn read(path: &Path, contents: &[u8]) -> LabResult<ProgramArchitecture> {
        if !contents.starts_with(b"\x7fELF") {
            return Ok(ProgramArchitecture::own());
        }
        match contents.get(MACHINE_OFFSET..MACHINE_OFFSET + 2) {
            Some([62, 0]) => Ok(ProgramArchitecture::Amd64),
            Some([183, 0]) => Ok(ProgramArchitecture::Arm64),
            other => Err(LabError::refused(format!(
                "{}: machine {other:?} of the ELF header is neither x86-64 nor AArch64",
                path.display()
            ))),
        }
    }

    /// Returns the name used by OCI.
    pub fn name(self) -> &'static str {
        match self {
            ProgramArchitecture::Amd64 => "amd64",
            ProgramArchitecture::Arm64 => "arm64",
        }
    }

    /// Returns the directory of the libraries for programs that were built on a machine of another architecture.
    fn cross_libraries(self) -> &'static Path {
        Path::new(match self {
            ProgramArchitecture::Amd64 => "/usr/x86_64-linux-gnu/lib",
            ProgramArchitecture::Arm64 => "/usr/aarch64-linux-gnu/lib",
        })
    }

    /// Returns the shared libraries of a program of this architecture and its dynamic loader; none for a static program.
    pub fn libraries(self, program: &Path) -> LabResult<Vec<SharedLibrary>> {
        if self == ProgramArchitecture::own() { libraries(program) } else { self.cross_built(program) }
    }

    fn cross_built(self, program: &Path) -> LabResult<Vec<SharedLibrary>> {
        let mut found: BTreeSet<String> = BTreeSet::new();
        let mut pending = vec![program.to_owned()];
        while let Some(file) = pending.pop() {
            for name in needed(&file)? {
                let source = self.cross_libraries().join(&name);
                if !source.is_file() {
                    return Err(LabError::refused(format!(
                        "{} needs {name}, which is not in {} (package libc6-{}-cross)",
                        file.display(),
                        self.cross_libraries().display(),
                        self.name()
                    )));
                }
                if found.insert(name) {
                    pending.push(source);
                }
            }
        }
        let library = |name: String| SharedLibrary {
            source: self.cross_libraries().join(&name),
            // The loader searches this directory on every distribution.
            target: format!("lib/{name}"),
        };
        Ok(found.into_iter().map(library).collect())
    }
}

/// Returns the libraries as the loader of this machine finds them, at the same paths.
fn libraries(program: &Path) -> LabResult<Vec<SharedLibrary>> {
    let listed = output_of("ldd", &[], program)?;
    let at_path = |path: &str| SharedLibrary {
        source: PathBuf::from(path),
        target: path.trim_start_matches('/').to_owned(),
    };
    Ok(listed.lines().filter_map(library).map(at_path).collect())
}

/// Extracts the path from an ldd line: `libm.so.6 => /lib/libm.so.6 (0x7f...)` or `/lib64/ld.so (0x7f...)`.
fn library(line: &str) -> Option<&str> {
    let path = line.split_once("=>").map_or(line, |(_, path)| path);
    let path = path.trim().split(' ').next()?;
    path.starts_with('/').then_some(path)
}

/// Returns the names of the libraries that a file needs, and of its loader.
fn needed(file: &Path) -> LabResult<Vec<String>> {
    let listed = output_of("readelf", &["--wide", "--program-headers", "--dynamic"], file)?;
    Ok(listed.lines().filter_map(needed_name).map(str::to_owned).collect())
}

/// Extracts the file name from a line of readelf: `(NEEDED) Shared library: [libc.so.6]` or
/// `[Requesting program interpreter: /lib/ld-linux-aarch64.so.1]`.
fn needed_name(line: &str) -> Option<&str> {
    let text = match line.split_once("Shared library: [") {
        Some((_, name)) => name,
        None => line.split_once("[Requesting program interpreter: ")?.1,
    };
    let path = text.strip_suffix(']')?;
    Some(path.rsplit_once('/').map_or(path, |(_, name)| name))
}

fn output_of(program: &str, arguments: &[&str], file: &Path) -> LabResult<String> {
    fs::metadata(file).map_err(LabError::file(file))?;
    let output = Command::new(program)
        .args(arguments)
        .arg(file)
        .output()
        .map_err(|source| LabError::Io { what: program.to_owned(), source })?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_as_the_loader_lists_them() {
        assert_eq!(library("\tlibm.so.6 => /lib/libm.so.6 (0x00007f)"), Some("/lib/libm.so.6"));
        assert_eq!(library("\t/lib64/ld-linux-x86-64.so.2 (0x00007f)"), Some("/lib64/ld-linux-x86-64.so.2"));
        assert_eq!(library("\tlinux-vdso.so.1 (0x00007f)"), None);
        assert_eq!(library("\tnot a dynamic executable"), None);
    }

    #[test]
    fn needed_libraries_and_the_loader_are_found() {
        let line = " 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]";
        assert_eq!(needed_name(line), Some("libc.so.6"));
        let line = "      [Requesting program interpreter: /lib/ld-linux-aarch64.so.1]";
        assert_eq!(needed_name(line), Some("ld-linux-aarch64.so.1"));
        assert_eq!(needed_name(" 0x000000000000000c (INIT)               0x1000"), None);
        let own = std::env::current_exe().unwrap();
        assert!(needed(&own).unwrap().contains(&"libc.so.6".to_owned()));
    }

    #[test]
    fn the_architecture_is_read_from_the_header() {
        let path = Path::new("program");
        let mut header = b"\x7fELF".to_vec();
        header.resize(64, 0);
        for (machine, expected) in [(62, ProgramArchitecture::Amd64), (183, ProgramArchitecture::Arm64)] {
            header[MACHINE_OFFSET] = machine;
            assert_eq!(ProgramArchitecture::read(path, &header).unwrap(), expected);
        }
        header[MACHINE_OFFSET] = 40;
        let error = ProgramArchitecture::read(path, &header).unwrap_err().to_string();
        assert!(error.starts_with("program: machine ") && error.contains("AArch64"), "{error}");
        assert!(ProgramArchitecture::read(path, b"\x7fELF").is_err());
    }
}
