//! Metrics of the daemon's own process, under the standard `process_*` names of the Prometheus clients.

use std::fmt::Write;
use std::fs;

/// Clock ticks per second in /proc (USER_HZ), 100 on all supported architectures.
const CLOCK_TICKS_PER_SECOND: f64 = 100.0;

/// Renders the metrics in the Prometheus text format. Values that cannot be read are omitted.
pub fn text() -> String {
    let mut text = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, value: Option<f64>| {
        if let Some(value) = value {
            let _ = writeln!(text, "# HELP {name} {help}.\n# TYPE {name} {kind}\n{name} {value}");
        }
    };
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Parse after the command name, which may contain any character, including spaces and parentheses.
    let fields: Vec<f64> = stat
        .rsplit(") ")
        .next()
        .unwrap_or_default()
        .split(' ')
        .map(|field| field.trim().parse().unwrap_or(0.0))
        .collect();
    let field = |number: usize| fields.get(number - 3).copied();
    let cpu = field(14).zip(field(15)).map(|(user, system)| (user + system) / CLOCK_TICKS_PER_SECOND);
    metric("process_cpu_seconds_total", "counter", "Processor time of the daemon in seconds", cpu);
    let started = field(22).zip(booted()).map(|(since, booted)| booted + since / CLOCK_TICKS_PER_SECOND);
    metric("process_start_time_seconds", "gauge", "Start of the daemon, in seconds since 1970", started);
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes = |name: &str| -> Option<f64> {
        let rest = status.lines().find_map(|line| line.strip_prefix(name))?;
        rest.trim().strip_suffix(" kB")?.trim().parse().ok()
    };
    let bytes = |name: &str| kilobytes(name).map(|number| number * 1024.0);
    metric(
        "process_virtual_memory_bytes",
        "gauge",
        "Virtual memory of the daemon in bytes",
        bytes("VmSize:"),
    );
    metric(
        "process_resident_memory_bytes",
        "gauge",
        "Resident memory of the daemon in bytes",
        bytes("VmRSS:"),
    );
    let open = fs::read_dir("/proc/self/fd")
        .ok()
        .map(|files| files.count())
        .and_then(|count| u32::try_from(count).ok());
    metric("process_open_fds", "gauge", "Open files of the daemon", open.map(f64::from));
    text
}

fn booted() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_is_described() {
        let text = text();
        let value = |name: &str| -> f64 {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
            line.unwrap_or_else(|| panic!("{name} is not in\n{text}")).parse().unwrap()
        };
        assert!(value("process_resident_memory_bytes") > 1e5);
        assert!(value("process_virtual_memory_bytes") >= value("process_resident_memory_bytes"));
        assert!(value("process_open_fds") >= 3.0);
        assert!(value("process_start_time_seconds") > 1.6e9);
        assert!(value("process_cpu_seconds_total") >= 0.0);
    }
}
