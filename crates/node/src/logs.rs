//! Where the log goes, and how grave what goes there must be, as the settings say.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tortie_compute::{LogSeverity, Parameters};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// Standard error.
    pub screen: LogSeverity,
    pub file: Option<LogFile>,
    pub syslog: Option<LogSeverity>,
    /// `logDebugFilenameRegex`: of what is for debugging, only lines from source files that match. Empty: all.
    pub debug_files: String,
    /// `debugDisableLogDropping`: whoever logs waits for a slow disk or a slow syslog instead of losing a line.
    pub keeps_all: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFile {
    pub path: PathBuf,
    pub severity: LogSeverity,
}

/// What became of lines that were not written.
#[derive(Debug, Default)]
pub struct LogCounters {
    /// There were too many at once.
    pub dropped: AtomicU64,
    /// The disk or the syslog daemon did not take them.
    pub errors: AtomicU64,
}

/// The log of the process. Who runs the node has begun it, since there is something to log before there are settings.
pub trait Logs: Send + Sync {
    /// Returns what cannot be done, each with the name of the setting and its value.
    fn follow(&self, settings: &LogSettings) -> Vec<String>;

    fn counters(&self) -> Arc<LogCounters>;
}

impl LogSettings {
    /// Standard error is read by systemd or by the container runtime, so a file and syslog get the log only if somebody asks for it.
    /// A path asks for the file, and so does its severity.
    pub fn of(parameters: &Parameters) -> LogSettings {
        let on = |severity: LogSeverity| severity != LogSeverity::Off;
        let (path, severity) = (&parameters.log_file_path, &parameters.log_severity_file);
        let asked = (path.is_set || severity.is_set) && !path.value.is_empty() && on(severity.value);
        LogSettings {
            screen: parameters.log_severity_screen,
            file: asked.then(|| LogFile { path: PathBuf::from(&path.value), severity: severity.value }),
            syslog: parameters.log_severity_sys.get().copied().filter(|severity| on(*severity)),
            debug_files: parameters.log_debug_filename_regex.clone(),
            keeps_all: parameters.debug_disable_log_dropping,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use tortie_compute::Environment;

    fn settings(variables: &[(&str, &str)]) -> LogSettings {
        let variables = variables.iter().map(|(name, value)| (format!("FELIX_{name}"), (*value).to_owned()));
        let environment = Environment::new(variables, []);
        LogSettings::of(&Parameters::resolve("n1", &BTreeMap::new(), [], &environment))
    }

    #[test]
    fn files_and_syslog_are_asked_for() {
        let file = |path: &str, severity| Some(LogFile { path: PathBuf::from(path), severity });
        let default = settings(&[]);
        assert_eq!((default.file, default.syslog), (None, None));
        let path = settings(&[("LOGFILEPATH", "/var/log/n.log")]);
        assert_eq!(path.file, file("/var/log/n.log", LogSeverity::Info));
        let severity = settings(&[("LOGSEVERITYFILE", "debug"), ("LOGSEVERITYSYS", "WARNING")]);
        assert_eq!(severity.file, file("/var/log/calico/felix.log", LogSeverity::Debug));
        assert_eq!(severity.syslog, Some(LogSeverity::Warning));
        for none in [
            &[("LOGFILEPATH", "none"), ("LOGSEVERITYFILE", "Debug")],
            &[("LOGFILEPATH", "/var/log/n.log"), ("LOGSEVERITYFILE", "none")],
        ] {
            assert_eq!(settings(none).file, None, "{none:?}");
        }
        assert_eq!(settings(&[("LOGSEVERITYSYS", "none")]).syslog, None);
    }
}
