//! Installs the program as the FlexVolume driver `nodeagent/uds` in kubelet's directory of drivers.

use crate::error::CsiError;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Directory of vendor and driver, and name of the program, by which kubelet finds the driver `nodeagent/uds`.
const DRIVER_DIRECTORY: &str = "nodeagent~uds";
const PROGRAM_NAME: &str = "uds";
/// kubelet ignores names with a dot in front.
const UNFINISHED_NAME: &str = ".uds";
const PROGRAM_MODE: u32 = 0o755;

/// Copies the running program. kubelet may run the previous one at any time, so it is replaced as a whole.
pub fn install_program(directory: &Path) -> Result<PathBuf, CsiError> {
    let directory = directory.join(DRIVER_DIRECTORY);
    let program = directory.join(PROGRAM_NAME);
    let install = || -> io::Result<()> {
        fs::create_dir_all(&directory)?;
        let unfinished = directory.join(UNFINISHED_NAME);
        fs::copy(std::env::current_exe()?, &unfinished)?;
        fs::set_permissions(&unfinished, Permissions::from_mode(PROGRAM_MODE))?;
        fs::rename(&unfinished, &program)
    };
    install().map_err(|source| CsiError::FlexVolumeProgram { path: program.clone(), source })?;
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_replaces_its_predecessor() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("nodeagent~uds/uds");
        fs::create_dir(dir.path().join("nodeagent~uds")).unwrap();
        fs::write(&program, "old").unwrap();
        for _ in 0..2 {
            assert_eq!(install_program(dir.path()).unwrap(), program);
            assert_eq!(fs::metadata(&program).unwrap().permissions().mode() & 0o777, 0o755);
            let length = |path: &Path| fs::metadata(path).unwrap().len();
            assert_eq!(length(&program), length(&std::env::current_exe().unwrap()));
            assert_eq!(fs::read_dir(dir.path().join("nodeagent~uds")).unwrap().count(), 1, "nothing is left");
        }
        fs::write(dir.path().join("file"), "").unwrap();
        let error = install_program(&dir.path().join("file")).unwrap_err().to_string();
        assert!(error.contains("file/nodeagent~uds/uds"), "{error}");
    }
}
