//! A small separate disk: a tmpfs that is unmounted when the test ends.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

pub struct TmpfsDisk {
    dir: TempDir,
}

impl TmpfsDisk {
    pub fn new(bytes: u64) -> TmpfsDisk {
        let dir = TempDir::new().unwrap();
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tortie-test"])
            .arg(dir.path())
            .status()
            .expect("mount(8) is needed");
        assert!(status.success(), "a tmpfs could not be mounted: root is needed");
        TmpfsDisk { dir }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }

    /// Fills the remaining space completely.
    pub fn fill(&self) {
        let mut file: File = OpenOptions::new().create(true).append(true).open(self.filler()).unwrap();
        let piece = vec![1; 1 << 20];
        let mut size = piece.len();
        while size > 0 {
            if file.write_all(&piece[..size]).is_err() {
                size /= 2;
            }
        }
    }

    pub fn free(&self) {
        std::fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for TmpfsDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.dir.path()).status();
    }
}
