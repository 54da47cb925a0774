//! The outputs of the log and their severities, as set by the Felix parameters.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tortie_compute::{LogSeverity, NodeParameters};
use tortie_plan::bgp::BgpLogSeverity;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// Severity of the output to standard error.
    pub screen: LogSeverity,
    /// Severity of lines about BGP on standard error, if it differs from that of the others.
    pub bgp: Option<LogSeverity>,
    pub file: Option<LogFileSettings>,
    pub syslog: Option<LogSeverity>,
    /// `logDebugFilenameRegex`: debug lines are logged only from source files that match. Empty means all.
    pub debug_files: String,
    /// `debugDisableLogDropping`: log calls wait for a slow disk or syslog instead of dropping lines.
    pub keeps_all: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFileSettings {
    pub path: PathBuf,
    pub severity: LogSeverity,
}

/// Counters of log lines that were not written.
#[derive(Debug, Default)]
pub struct LogCounters {
    /// Lines that were dropped because the queue was full.
    pub dropped: AtomicU64,
    /// Lines that the disk or the syslog daemon did not accept.
    pub errors: AtomicU64,
}

/// The log of the process. The caller of the node creates it, because the process logs before it knows the settings.
pub trait LogControl: Send + Sync {
    /// Applies the settings. Returns the settings that cannot be applied, each with its name and value.
    fn apply(&self, settings: &LogSettings) -> Vec<String>;

    fn counters(&self) -> Arc<LogCounters>;
}

impl LogSettings {
    /// Derives the log settings. systemd or the container runtime collects standard error, so the log goes to a file
    /// or to syslog only if that is configured. Setting the path or the severity enables the file.
    ///
    /// `Info` for BGP is the default of BGPConfiguration and means the severity of the node.
    pub fn from_parameters(parameters: &NodeParameters, bgp: BgpLogSeverity) -> LogSettings {
        let path = &parameters.log_file_path;
        let severity = &parameters.log_severity_file;
        let is_enabled =
            (path.is_set || severity.is_set) && !path.value.is_empty() && severity.value != LogSeverity::Off;
        let file = LogFileSettings { path: PathBuf::from(&path.value), severity: severity.value };
        let syslog = parameters.log_severity_sys.get().copied();
        LogSettings {
            screen: parameters.log_severity_screen,
            bgp: match bgp {
                BgpLogSeverity::Debug => Some(LogSeverity::Debug),
                BgpLogSeverity::Info => None,
                BgpLogSeverity::Warning => Some(LogSeverity::Warning),
                BgpLogSeverity::Error => Some(LogSeverity::Error),
            },
            file: is_enabled.then_some(file),
            syslog: syslog.filter(|severity| *severity != LogSeverity::Off),
            debug_files: parameters.log_debug_filename_regex.clone(),
            keeps_all: parameters.debug_disable_log_dropping,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use tortie_compute::ParameterEnvironment;

    fn settings(variables: &[(&str, &str)]) -> LogSettings {
        let variables = variables.iter().map(|(name, value)| (format!("FELIX_{name}"), (*value).to_owned()));
        let environment = ParameterEnvironment::new(variables, []);
        LogSettings::from_parameters(
            &NodeParameters::resolve("n1", &BTreeMap::new(), [], &environment),
            BgpLogSeverity::Info,
        )
    }

    #[test]
    fn file_and_syslog_must_be_configured() {
        let file = |path: &str, severity| Some(LogFileSettings { path: PathBuf::from(path), severity });
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
