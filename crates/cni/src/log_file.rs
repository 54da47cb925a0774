//! The log file of the plugins (`log_file_path`, `log_level` and the limits of the configuration): one line for each
//! request. A file that cannot be written does not fail the request.

use crate::socket::value_text;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DEFAULT_MAX_MEGABYTES: u64 = 100;
const DEFAULT_MAX_DAYS: u64 = 30;
const DEFAULT_MAX_FILES: u64 = 10;
const DAY: Duration = Duration::from_secs(86_400);

/// Severities, from the fewest lines to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LogLevel {
    Error,
    Info,
    Debug,
}

impl LogLevel {
    /// Parses a level as Calico does: an unknown one counts as `info`.
    fn parse(text: &str) -> LogLevel {
        match text.to_ascii_lowercase().as_str() {
            "error" => LogLevel::Error,
            "debug" => LogLevel::Debug,
            _ => LogLevel::Info,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            LogLevel::Error => "ERROR",
            LogLevel::Info => "INFO",
            LogLevel::Debug => "DEBUG",
        }
    }
}

/// The log file that a network configuration names.
#[derive(Debug)]
pub(crate) struct PluginLogFile {
    path: PathBuf,
    level: LogLevel,
    max_bytes: u64,
    max_age: Duration,
    max_files: u64,
}

impl PluginLogFile {
    /// Returns the file, if the configuration names one.
    pub fn from_config(config: &str) -> Option<PluginLogFile> {
        let path = value_text(config, "log_file_path").filter(|path| !path.is_empty())?;
        let level = value_text(config, "log_level").unwrap_or_default();
        let number = |key: &str, default: u64| {
            let given = value_text(config, key).and_then(|text| text.parse().ok());
            given.filter(|number| *number > 0).unwrap_or(default)
        };
        Some(PluginLogFile {
            path: path.into(),
            level: LogLevel::parse(&level),
            max_bytes: number("log_file_max_size", DEFAULT_MAX_MEGABYTES).saturating_mul(1 << 20),
            max_age: DAY.saturating_mul(
                u32::try_from(number("log_file_max_age", DEFAULT_MAX_DAYS)).unwrap_or(u32::MAX),
            ),
            max_files: number("log_file_max_count", DEFAULT_MAX_FILES),
        })
    }

    /// Appends a line if the level of the configuration includes it.
    pub fn write(&self, level: LogLevel, text: &str) {
        if level > self.level {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let line = format!(
            "{} [{}][{}] cni-plugin: {}\n",
            format_time(now, ' ', ':'),
            level.name(),
            std::process::id(),
            text.replace('\n', " ")
        );
        if let Ok(mut file) = self.open() {
            // One write, so that lines of concurrent plugins do not mix.
            let _ = file.write_all(line.as_bytes());
            self.rotate_full(&file, now);
        }
    }

    fn open(&self) -> std::io::Result<File> {
        if let Some(directory) = self.path.parent() {
            DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
        }
        OpenOptions::new().create(true).append(true).mode(0o644).open(&self.path)
    }

    /// Renames a file that has reached its size, and removes renamed files that are too many or too old.
    fn rotate_full(&self, file: &File, now: Duration) {
        let is_full = file.metadata().is_ok_and(|found| found.len() >= self.max_bytes);
        // Another plugin that holds the lock renames the file, or has renamed it since this one opened it.
        if !is_full || file.try_lock().is_err() || !self.is_current(file) {
            return;
        }
        let (Some(directory), Some(stem)) = (self.path.parent(), self.path.file_stem()) else { return };
        let stem = stem.to_string_lossy().into_owned() + "-";
        let extension = self.path.extension().map(|text| format!(".{}", text.to_string_lossy()));
        let extension = extension.unwrap_or_default();
        let renamed = format!("{stem}{}{extension}", format_time(now, 'T', '-'));
        if fs::rename(&self.path, directory.join(renamed)).is_err() {
            return;
        }
        remove_rotated(directory, &stem, &extension, self.max_age, self.max_files);
    }

    /// Returns whether an open file still has the name of the log file.
    fn is_current(&self, file: &File) -> bool {
        let identity = |found: fs::Metadata| (found.dev(), found.ino());
        let named = fs::metadata(&self.path).map(identity);
        named.is_ok_and(|named| file.metadata().map(identity).is_ok_and(|opened| opened == named))
    }
}

/// Removes rotated files, the oldest first. Their names sort by time.
fn remove_rotated(directory: &Path, stem: &str, extension: &str, max_age: Duration, max_files: u64) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let time = name.strip_prefix(stem).and_then(|rest| rest.strip_suffix(extension));
            time.is_some_and(|time| time.starts_with(|first: char| first.is_ascii_digit()))
        })
        .collect();
    files.sort_unstable();
    let excess = files.len().saturating_sub(usize::try_from(max_files).unwrap_or(usize::MAX));
    for (index, path) in files.iter().enumerate() {
        let age = fs::metadata(path).and_then(|found| found.modified()).ok();
        let is_old = age.and_then(|time| time.elapsed().ok()).is_some_and(|age| age > max_age);
        if index < excess || is_old {
            let _ = fs::remove_file(path);
        }
    }
}

/// Formats a time since the epoch in UTC, with milliseconds. The date follows from the number of days (Howard Hinnant,
/// "chrono-compatible low-level date algorithms").
fn format_time(since_epoch: Duration, date_end: char, separator: char) -> String {
    let seconds = since_epoch.as_secs();
    let shifted = seconds / 86_400 + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    let millis = since_epoch.subsec_millis();
    format!(
        "{year:04}-{month:02}-{day:02}{date_end}{hour:02}{separator}{minute:02}{separator}{second:02}.{millis:03}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_formatted_in_utc() {
        let text = |seconds, millis: u64| {
            format_time(Duration::from_secs(seconds) + Duration::from_millis(millis), ' ', ':')
        };
        assert_eq!(text(0, 0), "1970-01-01 00:00:00.000");
        assert_eq!(text(951_782_399, 7), "2000-02-28 23:59:59.007");
        assert_eq!(text(951_782_400, 0), "2000-02-29 00:00:00.000");
        assert_eq!(text(1_709_251_199, 999), "2024-02-29 23:59:59.999");
        assert_eq!(text(1_735_689_600, 0), "2025-01-01 00:00:00.000");
    }

    #[test]
    fn the_level_selects_the_lines() {
        let directory = tempdir("levels");
        let log = |level: &str| {
            let path = directory.join(format!("a/b/{level}.log"));
            let config = format!(r#"{{"log_file_path": "{}", "log_level": "{level}"}}"#, path.display());
            let log = PluginLogFile::from_config(&config).unwrap();
            log.write(LogLevel::Error, "failed:\nbadly");
            log.write(LogLevel::Info, "done");
            log.write(LogLevel::Debug, "details");
            fs::read_to_string(path).unwrap()
        };
        for (level, lines) in [("ERROR", 1), ("info", 2), ("loud", 2), ("Debug", 3)] {
            assert_eq!(log(level).lines().count(), lines, "{level}");
        }
        assert!(log("error").ends_with("cni-plugin: failed: badly\n"));
        assert!(PluginLogFile::from_config(r#"{"log_level": "debug"}"#).is_none());
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn full_files_are_rotated_and_limited() {
        let directory = tempdir("rotation");
        let path = directory.join("cni.log");
        let config = format!(
            r#"{{"log_file_path": "{}", "log_file_max_size": 1, "log_file_max_count": 2}}"#,
            path.display()
        );
        let log = PluginLogFile::from_config(&config).unwrap();
        let large = "x".repeat(1 << 20);
        for _ in 0..5 {
            log.write(LogLevel::Info, &large);
            // The names of rotated files have a resolution of milliseconds.
            std::thread::sleep(Duration::from_millis(2));
        }
        log.write(LogLevel::Info, "small");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 3);
        assert!(fs::read_to_string(&path).unwrap().ends_with("small\n"));

        // Another plugin has renamed the file that this one has open.
        let renamed = log.open().unwrap();
        log.write(LogLevel::Info, &large);
        log.write(LogLevel::Info, "kept");
        log.rotate_full(&renamed, Duration::ZERO);
        assert!(fs::read_to_string(&path).unwrap().ends_with("kept\n"));
        fs::remove_dir_all(directory).unwrap();
    }

    fn tempdir(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("tortie-cni-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        directory
    }
}
