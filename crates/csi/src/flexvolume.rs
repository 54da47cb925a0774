//! The FlexVolume driver `nodeagent/uds`: kubelet runs the program as `uds` with a command and reads the result, a JSON
//! object, from its output. For clusters that cannot use CSI.

use crate::error::VolumeError;
use crate::publisher::{DEFAULT_PREFIX, VolumePublisher};
use crate::volume::{PodVolume, VolumePlugin, VolumeTarget, flexvolume_id};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use thiserror::Error;

/// Configuration of the driver; may be missing.
pub const FLEXVOLUME_CONFIG_FILE: &str = "/etc/flexvolume/nodeagent.json";
const MAX_CONFIG_BYTES: u64 = 64 << 10;
const PATH_FIELD: &str = "path of the volume";

#[derive(Debug, Error)]
enum FlexVolumeError {
    #[error("usage: uds init | mount DIRECTORY OPTIONS | unmount DIRECTORY")]
    Usage,
    #[error("OPTIONS: not a JSON object: {0}")]
    Options(serde_json::Error),
    #[error("{}: {source}", .path.display())]
    Config { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

#[derive(Deserialize)]
struct FlexVolumeConfig {
    nodeagent_management_home: Option<PathBuf>,
}

/// Runs one command of kubelet and prints its result.
pub fn run_flexvolume(arguments: &[&str], config: &Path, out: &mut dyn Write) -> ExitCode {
    let (response, status) = match arguments {
        ["init"] => (json!({"status": "Success", "capabilities": {"attach": false}}), ExitCode::SUCCESS),
        ["mount" | "unmount", ..] => match change_volume(arguments, config) {
            Ok(()) => (json!({"status": "Success"}), ExitCode::SUCCESS),
            Err(error) => (json!({"status": "Failure", "message": error.to_string()}), ExitCode::FAILURE),
        },
        // kubelet does these things itself.
        _ => (
            json!({"status": "Not supported", "message": FlexVolumeError::Usage.to_string()}),
            ExitCode::FAILURE,
        ),
    };
    // kubelet reads a missing response as a failure.
    let _ = writeln!(out, "{response}");
    status
}

fn change_volume(arguments: &[&str], config: &Path) -> Result<(), FlexVolumeError> {
    let publisher = VolumePublisher::new(read_prefix(config)?);
    let parse_target = |path: &str| VolumeTarget::parse(PATH_FIELD, path, VolumePlugin::FlexVolume);
    match arguments {
        ["mount", path, options] => {
            let options: Map<String, Value> =
                serde_json::from_str(options).map_err(FlexVolumeError::Options)?;
            let option = |key: &str| options.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
            Ok(publisher.publish(&PodVolume::from_options(parse_target(path)?, option)?)?)
        }
        ["unmount", path] => {
            let target = parse_target(path)?;
            Ok(publisher.unpublish(&flexvolume_id(&target), &target)?)
        }
        _ => Err(FlexVolumeError::Usage),
    }
}

/// Reads the directory of sockets and credentials.
fn read_prefix(path: &Path) -> Result<PathBuf, FlexVolumeError> {
    let failed = |source| FlexVolumeError::Config { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    match File::open(path).and_then(|file| file.take(MAX_CONFIG_BYTES).read_to_end(&mut bytes)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(DEFAULT_PREFIX.into()),
        read => read.map_err(failed)?,
    };
    let config: FlexVolumeConfig = serde_json::from_slice(&bytes).map_err(|error| failed(error.into()))?;
    let prefix = config.nodeagent_management_home.unwrap_or_else(|| DEFAULT_PREFIX.into());
    if !prefix.is_absolute() {
        let reason = format!("nodeagent_management_home: {} is not an absolute path", prefix.display());
        return Err(failed(io::Error::new(ErrorKind::InvalidData, reason)));
    }
    Ok(prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(arguments: &[&str], config: &Path) -> Value {
        let mut out = Vec::new();
        run_flexvolume(arguments, config, &mut out);
        serde_json::from_slice(&out).unwrap()
    }

    #[test]
    fn commands_have_results() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("nodeagent.json");
        let missing = run(&["init"], &config);
        assert_eq!(missing, json!({"status": "Success", "capabilities": {"attach": false}}));
        for arguments in [&[][..], &["waitforattach", "x"], &["getvolumename", "{}"]] {
            assert_eq!(run(arguments, &config)["status"], "Not supported");
        }
        for (arguments, reason) in [
            (&["mount"][..], "usage: uds init"),
            (&["unmount", "/etc"], "path of the volume: \"/etc\""),
            (&["mount", "/etc", "{}"], "path of the volume: \"/etc\""),
            (&["mount", "/etc", "{"], "OPTIONS: not a JSON object"),
            (&["mount", "/k/pods/a/volumes/nodeagent~uds/v", "{}"], "kubernetes.io/pod.uid: \"\""),
        ] {
            let response = run(arguments, &config);
            assert_eq!(response["status"], "Failure");
            assert!(response["message"].as_str().unwrap().starts_with(reason), "{response}");
        }
    }

    #[test]
    fn configuration_selects_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("nodeagent.json");
        let write = |text: &str| std::fs::write(&config, text).unwrap();
        assert_eq!(read_prefix(&config).unwrap(), Path::new(DEFAULT_PREFIX));
        write("{\"log_level\": \"INFO\"}");
        assert_eq!(read_prefix(&config).unwrap(), Path::new(DEFAULT_PREFIX));
        write("{\"nodeagent_management_home\": \"/run/other\"}");
        assert_eq!(read_prefix(&config).unwrap(), Path::new("/run/other"));
        for text in ["{", "{\"nodeagent_management_home\": \"other\"}"] {
            write(text);
            let error = read_prefix(&config).unwrap_err().to_string();
            assert!(error.starts_with(&config.display().to_string()), "{error}");
        }
    }
}
