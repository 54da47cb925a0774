//! Sets up the log of daemons: standard error, and for a node also a file and syslog according to its settings.

mod screen;
mod sink;
mod syslog;

use crate::rotating_log::RotatingLog;
use regex::Regex;
use screen::StderrLog;
use sink::{LogSink, LogTarget};
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use syslog::SyslogTarget;
use tortie_compute::LogSeverity;
use tortie_node::{LogControl, LogCounters, LogFileSettings, LogSettings};
use tracing::Level;
use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::layer::{Filter, SubscriberExt};
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt};

/// Size at which a log file is rotated; it can exceed this by at most one line. Three rotated files are kept.
const LOG_BYTES: u64 = 10 << 20;

type LogFilter = Box<dyn Filter<Registry> + Send + Sync>;
type FilterHandle = reload::Handle<LogFilter, Registry>;

pub struct DaemonLogging {
    /// `None` if RUST_LOG sets the filter.
    screen: Option<FilterHandle>,
    file: FilterHandle,
    syslog: FilterHandle,
    file_sink: LogSink,
    syslog_sink: LogSink,
    counters: Arc<LogCounters>,
    open: Mutex<OpenTargets>,
}

/// The currently configured targets.
#[derive(Default)]
struct OpenTargets {
    file: Option<PathBuf>,
    syslog: bool,
    debug_files: Option<Regex>,
}

impl DaemonLogging {
    /// Installs the global subscriber, which logs to standard error.
    pub fn start() -> DaemonLogging {
        DaemonLogging::start_at(LogSeverity::Info)
    }

    /// Installs the global subscriber with this severity, unless RUST_LOG sets the filter.
    pub fn start_at(severity: LogSeverity) -> DaemonLogging {
        let given = EnvFilter::try_from_default_env().ok();
        let follows = given.is_none();
        let initial_filter: LogFilter = match given {
            Some(given) => Box::new(given),
            None => build_filter(severity, None, None),
        };
        let counters = Arc::new(LogCounters::default());
        let file_sink = LogSink::new(counters.clone());
        let syslog_sink = LogSink::new(counters.clone());
        let (screen_filter, screen) = reload::Layer::new(initial_filter);
        let (file_filter, file) = reload::Layer::new(build_filter(LogSeverity::Off, None, None));
        let (syslog_filter, syslog) = reload::Layer::new(build_filter(LogSeverity::Off, None, None));
        let colours = io::stderr().is_terminal();
        let layers: Vec<Box<dyn Layer<Registry> + Send + Sync>> = vec![
            // Write errors are counted by the writer. By default the layer prints them with a macro that panics if
            // standard error cannot be written.
            fmt::layer()
                .log_internal_errors(false)
                .with_writer(StderrLog::new(counters.clone(), colours))
                .with_ansi(colours)
                .with_filter(screen_filter)
                .boxed(),
            fmt::layer()
                .log_internal_errors(false)
                .with_writer(file_sink.clone())
                .with_ansi(false)
                .with_filter(file_filter)
                .boxed(),
            // The syslog daemon adds the time, and the level is in the message header.
            fmt::layer()
                .log_internal_errors(false)
                .without_time()
                .with_level(false)
                .with_ansi(false)
                .with_writer(syslog_sink.clone())
                .with_filter(syslog_filter)
                .boxed(),
        ];
        tracing_subscriber::registry().with(layers).init();
        DaemonLogging {
            screen: follows.then_some(screen),
            file,
            syslog,
            file_sink,
            syslog_sink,
            counters,
            open: Mutex::default(),
        }
    }

    /// Switches to another log file. If the new file cannot be opened, the old one stays in use.
    fn move_file(
        &self,
        open: &mut OpenTargets,
        wanted: Option<&LogFileSettings>,
        problems: &mut Vec<String>,
    ) {
        let path = wanted.map(|file| file.path.clone());
        if open.file == path {
            return;
        }
        match &path {
            None => self.file_sink.close(),
            Some(path) => match open_log(path).and_then(|log| self.file_sink.open("log-file", log)) {
                Ok(()) => {}
                Err(error) => {
                    problems.push(format!("logFilePath: {:?} cannot be written: {error}", path.display()));
                    return;
                }
            },
        }
        open.file = path;
    }

    fn switch_syslog(&self, open: &mut OpenTargets, wanted: bool, problems: &mut Vec<String>) {
        match (open.syslog, wanted) {
            (true, false) => self.syslog_sink.close(),
            (false, true) => {
                let syslog = SyslogTarget::new(std::path::Path::new(syslog::SYSLOG_SOCKET));
                if let Err(error) = syslog.and_then(|syslog| self.syslog_sink.open("syslog", syslog)) {
                    problems.push(format!(
                        "logSeveritySys: there is no syslog on {}: {error}",
                        syslog::SYSLOG_SOCKET
                    ));
                    return;
                }
            }
            _ => {}
        }
        open.syslog = wanted;
    }
}

impl LogControl for DaemonLogging {
    fn apply(&self, settings: &LogSettings) -> Vec<String> {
        let mut problems = Vec::new();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        match settings.debug_files.as_str() {
            "" => open.debug_files = None,
            pattern => match Regex::new(pattern) {
                Ok(regex) => open.debug_files = Some(regex),
                Err(error) => problems.push(format!("logDebugFilenameRegex: {pattern:?}: {error}")),
            },
        }
        let of_file = settings.file.as_ref().map_or(LogSeverity::Off, |file| file.severity);
        for (handle, severity, bgp) in [
            (self.screen.as_ref(), settings.screen, settings.bgp),
            (Some(&self.file), of_file, None),
            (Some(&self.syslog), settings.syslog.unwrap_or(LogSeverity::Off), None),
        ] {
            // Fails only if the subscriber is gone.
            let _ = handle.map(|handle| handle.reload(build_filter(severity, bgp, open.debug_files.clone())));
        }
        for sink in [&self.file_sink, &self.syslog_sink] {
            sink.keep_all(settings.keeps_all);
        }
        // Change the targets after the filters, so that a new target receives no line that its filter excludes.
        self.move_file(&mut open, settings.file.as_ref(), &mut problems);
        self.switch_syslog(&mut open, settings.syslog.is_some(), &mut problems);
        problems
    }

    fn counters(&self) -> Arc<LogCounters> {
        self.counters.clone()
    }
}

fn open_log(path: &std::path::Path) -> io::Result<RotatingLog> {
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        std::fs::create_dir_all(directory)?;
    }
    RotatingLog::open(path, LOG_BYTES)
}

fn level_name(severity: LogSeverity) -> &'static str {
    match severity {
        LogSeverity::Trace => "trace",
        LogSeverity::Debug => "debug",
        LogSeverity::Info => "info",
        LogSeverity::Warning => "warn",
        LogSeverity::Error | LogSeverity::Fatal => "error",
        LogSeverity::Off => "off",
    }
}

/// Builds the filter of an output. `bgp` is the severity of lines about BGP if it differs.
fn build_filter(severity: LogSeverity, bgp: Option<LogSeverity>, debug_files: Option<Regex>) -> LogFilter {
    let level = level_name(severity);
    let of_bgp = level_name(bgp.unwrap_or(severity));
    // The netlink crate warns about every ENOENT response, which is a normal result here.
    let nlink = if severity == LogSeverity::Off { "off" } else { "error" };
    // The client of Kubernetes logs every attempt while kube-apiserver is away. Its errors are also returned, and the
    // daemon logs each outage once, with the number of attempts.
    let kube = if matches!(severity, LogSeverity::Trace | LogSeverity::Debug) { level } else { "off" };
    let levels = EnvFilter::new(format!(
        "{level},nlink={nlink},kube_client::client::builder={kube},tortie_bgp={of_bgp},tortie_node::bgp={of_bgp}"
    ));
    match debug_files {
        None => Box::new(levels),
        Some(files) => Box::new(levels.and(filter_fn(move |line| {
            *line.level() <= Level::INFO || line.file().is_some_and(|file| files.is_match(file))
        }))),
    }
}

impl LogTarget for RotatingLog {
    fn write(&mut self, _: Level, line: &[u8]) -> io::Result<()> {
        RotatingLog::write(self, line)
    }
}
