//! Metrics of the daemon's own process, under the standard `process_*` names of the Prometheus clients.

use crate::metrics::MetricsPage;
use std::fs;

/// Clock ticks per second in /proc (USER_HZ), 100 on all supported architectures.
const CLOCK_TICKS_PER_SECOND: f64 = 100.0;

/// Renders the metrics in the Prometheus text format. Values that cannot be read are omitted.
pub fn render_metrics() -> String {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Parse after the command name, which may contain any character, including spaces and parentheses.
    let after_name = stat.rsplit(") ").next().unwrap_or_default();
    let fields: Vec<f64> = after_name.split(' ').map(|field| field.trim().parse().unwrap_or(0.0)).collect();
    // The numbers of proc(5), in which the first field after the name is 3.
    let [user, system, since] = [14, 15, 22].map(|number| fields.get(number - 3).copied());
    let cpu = user.zip(system).map(|(user, system)| (user + system) / CLOCK_TICKS_PER_SECOND);
    let started = since.zip(read_boot_time()).map(|(since, booted)| booted + since / CLOCK_TICKS_PER_SECOND);
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let [size, resident] = ["VmSize:", "VmRSS:"].map(|name| parse_memory(&status, name));
    let open = fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as f64);
    let mut page = MetricsPage::default();
    for (name, kind, help, value) in [
        ("process_cpu_seconds_total", "counter", "Processor time of the daemon in seconds.", cpu),
        ("process_start_time_seconds", "gauge", "Start of the daemon, in seconds since 1970.", started),
        ("process_virtual_memory_bytes", "gauge", "Virtual memory of the daemon in bytes.", size),
        ("process_resident_memory_bytes", "gauge", "Resident memory of the daemon in bytes.", resident),
        ("process_open_fds", "gauge", "Open files of the daemon.", open),
    ] {
        if let Some(value) = value {
            page.add_metric(name, kind, help, value);
        }
    }
    page.0
}

/// Returns a memory size in /proc/self/status, in bytes.
fn parse_memory(status: &str, name: &str) -> Option<f64> {
    let rest = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: f64 = rest.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024.0)
}

fn read_boot_time() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_is_described() {
        let text = render_metrics();
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
