//! Serves one CNI request: reads the environment and standard input, and prints the response to standard output.

use crate::error::{CniError, code};
use crate::log_file::{LogLevel, PluginLogFile};
use crate::request::{self, CniPlugin, MAX_CONFIG_BYTES, SUPPORTED_VERSIONS};
use crate::socket;
use std::io::{Read, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Serves one CNI request and returns the exit code of the plugin.
pub fn run(plugin: CniPlugin, version: &str) -> ExitCode {
    let first = std::env::args().nth(1).unwrap_or_default();
    let command = std::env::var("CNI_COMMAND").unwrap_or_default();
    if first == "-v" {
        return print(version.as_bytes(), true);
    }
    if command.is_empty() && first != "-t" {
        // A failed write to stderr does not change the exit code.
        let _ = writeln!(
            std::io::stderr(),
            "{} {version}\nCNI protocol versions supported: {}",
            plugin.about(),
            SUPPORTED_VERSIONS.join(", ")
        );
        return ExitCode::SUCCESS;
    }
    if command == "VERSION" {
        return print(request::version_response().as_bytes(), true);
    }
    let command = if first == "-t" { "TEST".to_owned() } else { command };
    match forward(plugin, &command) {
        Ok((success, answer)) => print(&answer, success),
        Err(error) => print(error.to_json().as_bytes(), false),
    }
}

fn forward(plugin: CniPlugin, command: &str) -> Result<(bool, Vec<u8>), CniError> {
    let mut config = Vec::new();
    let read = std::io::stdin().lock().take(MAX_CONFIG_BYTES + 1).read_to_end(&mut config);
    if let Err(error) = read {
        return Err(CniError::new(code::IO, "failed to read the configuration").with(error.to_string()));
    }
    if config.len() as u64 > MAX_CONFIG_BYTES {
        return Err(CniError::new(
            code::IO,
            format!("the configuration is larger than {MAX_CONFIG_BYTES} bytes"),
        ));
    }
    let config = String::from_utf8_lossy(&config);
    let request = request::encode_request(plugin, command, &config, request::is_own_namespace());
    let log = PluginLogFile::from_config(&config);
    let begun = Instant::now();
    let outcome = socket::exchange(&socket::find_path(&config), request.as_bytes());
    if let Some(log) = log {
        log_outcome(&log, plugin, command, begun.elapsed(), &outcome);
    }
    outcome
}

/// Logs a request and its outcome. The network configuration may contain credentials and is not logged.
fn log_outcome(
    log: &PluginLogFile,
    plugin: CniPlugin,
    command: &str,
    took: Duration,
    outcome: &Result<(bool, Vec<u8>), CniError>,
) {
    let variables = request::FORWARDED_VARIABLES.iter().filter_map(|name| {
        let value = std::env::var(name).ok().filter(|value| !value.is_empty())?;
        Some(format!(" {name}={value}"))
    });
    let request = format!("{} {command}{}", plugin.name(), variables.collect::<String>());
    match outcome {
        Ok((true, answer)) => {
            log.write(LogLevel::Info, &format!("{request}: done in {} ms", took.as_millis()));
            log.write(LogLevel::Debug, &format!("{request}: result {}", String::from_utf8_lossy(answer)));
        }
        Ok((false, answer)) => {
            log.write(LogLevel::Error, &format!("{request}: failed: {}", String::from_utf8_lossy(answer)));
        }
        Err(error) => log.write(LogLevel::Error, &format!("{request}: failed: {error}")),
    }
}

fn print(text: &[u8], success: bool) -> ExitCode {
    let mut out = std::io::stdout().lock();
    let printed =
        out.write_all(text).and_then(|()| if text.is_empty() { Ok(()) } else { out.write_all(b"\n") });
    if success && printed.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
