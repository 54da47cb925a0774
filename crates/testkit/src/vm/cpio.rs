//! Writes initramfs archives in the "newc" format of cpio.

const DIRECTORY_MODE: u32 = 0o040_755;
const PROGRAM_MODE: u32 = 0o100_755;
const DEVICE_MODE: u32 = 0o020_600;

/// An archive built entry by entry. A directory must be added before its contents.
#[derive(Debug, Default)]
pub struct CpioArchive {
    bytes: Vec<u8>,
    entries: u32,
}

impl CpioArchive {
    pub fn directory(&mut self, path: &str) {
        self.entry(path, DIRECTORY_MODE, (0, 0), &[]);
    }

    /// Adds a file. All files are executable: nothing in the archive is secret or harmful.
    pub fn file(&mut self, path: &str, contents: &[u8]) {
        self.entry(path, PROGRAM_MODE, (0, 0), contents);
    }

    /// Adds a character device.
    pub fn device(&mut self, path: &str, major: u32, minor: u32) {
        self.entry(path, DEVICE_MODE, (major, minor), &[]);
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), contents: &[u8]) {
        self.entries += 1;
        let name = path.trim_start_matches('/');
        let size = u32::try_from(contents.len()).expect("no file of an initramfs has 4 GB");
        let name_size = u32::try_from(name.len() + 1).expect("paths are short");
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, name_size, 0];
        self.bytes.extend(b"070701");
        fields.iter().for_each(|field| self.bytes.extend(format!("{field:08x}").bytes()));
        self.bytes.extend(name.bytes().chain([0]));
        self.align();
        self.bytes.extend(contents);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn cpio_extracts_the_archive() {
        let mut archive = CpioArchive::default();
        archive.directory("/etc");
        archive.file("/etc/name", b"guest\n");
        archive.file("/odd", b"12345");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("archive"), bytes).unwrap();
        crate::run(Command::new("busybox").args(["cpio", "-idm", "-F", "archive"]).current_dir(dir.path()));
        assert_eq!(std::fs::read(dir.path().join("etc/name")).unwrap(), b"guest\n");
        assert_eq!(std::fs::read(dir.path().join("odd")).unwrap(), b"12345");
    }
}
