//! Writes tar archives (ustar) for container images: files, directories and symbolic links. The output is reproducible.

use std::io::{self, Write};

const TAR_BLOCK_SIZE: usize = 512;
const MAX_ENTRY_NAME_LENGTH: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TarEntryKind {
    File,
    Link,
    Directory,
}

#[derive(Debug)]
pub struct TarArchive<W: Write> {
    out: W,
}

impl<W: Write> TarArchive<W> {
    pub fn new(out: W) -> TarArchive<W> {
        TarArchive { out }
    }

    pub fn directory(&mut self, name: &str) -> io::Result<()> {
        self.out.write_all(&header(&format!("{name}/"), TarEntryKind::Directory, 0o755, 0, "")?)
    }

    pub fn link(&mut self, name: &str, target: &str) -> io::Result<()> {
        self.out.write_all(&header(name, TarEntryKind::Link, 0o777, 0, target)?)
    }

    pub fn file(&mut self, name: &str, mode: u32, contents: &[u8]) -> io::Result<()> {
        self.out.write_all(&header(name, TarEntryKind::File, mode, contents.len() as u64, "")?)?;
        self.out.write_all(contents)?;
        self.out.write_all(&[0; TAR_BLOCK_SIZE][..padding(contents.len())])
    }

    /// Writes the end marker, two zero blocks, and returns the writer.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.write_all(&[0; 2 * TAR_BLOCK_SIZE])?;
        self.out.flush()?;
        Ok(self.out)
    }
}

fn padding(size: usize) -> usize {
    (TAR_BLOCK_SIZE - size % TAR_BLOCK_SIZE) % TAR_BLOCK_SIZE
}

fn header(
    name: &str,
    kind: TarEntryKind,
    mode: u32,
    size: u64,
    target: &str,
) -> io::Result<[u8; TAR_BLOCK_SIZE]> {
    for text in [name, target] {
        if text.len() > MAX_ENTRY_NAME_LENGTH {
            return Err(io::Error::other(format!("{text} is too long for an archive")));
        }
    }
    let kind = match kind {
        TarEntryKind::File => "0",
        TarEntryKind::Link => "2",
        TarEntryKind::Directory => "5",
    };
    let mut block = [0; TAR_BLOCK_SIZE];
    for (at, text) in [
        (0, name),
        (100, &format!("{mode:07o}")),
        // Owner and group: root.
        (108, "0000000"),
        (116, "0000000"),
        (124, &format!("{size:011o}")),
        // Modification time 0, for reproducible archives.
        (136, "00000000000"),
        // The checksum is computed with its own field set to blanks.
        (148, "        "),
        (156, kind),
        (157, target),
        (257, "ustar\u{0}00"),
    ] {
        block[at..at + text.len()].copy_from_slice(text.as_bytes());
    }
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    let sum = format!("{sum:06o}\u{0} ");
    block[148..156].copy_from_slice(sum.as_bytes());
    Ok(block)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn tar_reads_what_we_write() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.tar");
        let mut archive = TarArchive::new(std::fs::File::create(&file).unwrap());
        archive.directory("bin").unwrap();
        archive.file("bin/tool", 0o755, &[7; 1000]).unwrap();
        archive.link("bin/other", "tool").unwrap();
        archive.file("empty", 0o644, b"").unwrap();
        archive.finish().unwrap();
        let ran = Command::new("tar").arg("-C").arg(dir.path()).arg("-xf").arg(&file).output().unwrap();
        assert!(ran.status.success() && ran.stderr.is_empty(), "{ran:?}");
        assert_eq!(std::fs::read(dir.path().join("bin/other")).unwrap(), [7; 1000]);
        assert_eq!(std::fs::read_link(dir.path().join("bin/other")).unwrap().to_str(), Some("tool"));
        assert_eq!(std::fs::metadata(dir.path().join("empty")).unwrap().len(), 0);
    }

    #[test]
    fn names_that_do_not_fit_are_refused() {
        let mut archive = TarArchive::new(Vec::new());
        assert!(archive.file(&"x".repeat(101), 0o644, b"").is_err());
    }
}
