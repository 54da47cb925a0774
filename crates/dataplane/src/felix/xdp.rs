//! Removes Felix's XDP programs: those that Felix has pinned. The ids of the programs attached to interfaces are
//! compared with the ids of the pinned programs; attached programs with other ids are left alone.

use super::FelixRemoval;
use crate::error::DataplaneResult;
use crate::kernel::XdpPrograms;
use crate::netns::Netns;
use nlink::netlink::filter::BpfFilter;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Directory in which Felix pins its programs; the file names end with the interface name.
const FELIX_PIN_DIR: &str = "/sys/fs/bpf/calico/xdp";
const FELIX_PIN_PREFIX: &str = "prefilter_";

pub(super) async fn remove(netns: &Netns) -> FelixRemoval {
    FelixRemoval::from_result(remove_from(netns).await)
}

async fn remove_from(netns: &Netns) -> DataplaneResult<FelixRemoval> {
    let mut outcome = FelixRemoval::default();
    let pins = list_pins(Path::new(FELIX_PIN_DIR));
    if pins.is_empty() {
        return Ok(outcome);
    }
    let felix = list_programs(&pins, &mut outcome.failures);
    let kernel = XdpPrograms::open(netns)?;
    for attached in kernel.attached().await?.into_iter().filter(|attached| felix.contains(&attached.program))
    {
        match kernel.detach(&attached).await? {
            None => outcome.removed += 1,
            Some(errno) => outcome.failures.push(format!("XDP program of {}: {errno}", attached.interface)),
        }
    }
    // Keep the pins while a program is still attached: the retry needs them to identify it.
    if outcome.failures.is_empty() {
        for pin in pins {
            if let Err(error) = std::fs::remove_file(&pin) {
                outcome.failures.push(format!("{}: {error}", pin.display()));
            }
        }
    }
    Ok(outcome)
}

fn list_pins(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let is_pin =
        |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with(FELIX_PIN_PREFIX);
    entries.filter(is_pin).map(|entry| entry.path()).collect()
}

/// Returns the ids of the pinned programs. The kernel lists them in `/proc/self/fdinfo` while the programs are open;
/// this process has no other programs open.
fn list_programs(pins: &[PathBuf], failures: &mut Vec<String>) -> BTreeSet<u32> {
    let mut open = Vec::new();
    for pin in pins {
        match BpfFilter::from_pinned(pin) {
            Ok(program) => open.push(program),
            Err(error) => failures.push(format!("{}: {error}", pin.display())),
        }
    }
    let files = std::fs::read_dir("/proc/self/fdinfo").into_iter().flatten().flatten();
    let texts = files.filter_map(|file| std::fs::read_to_string(file.path()).ok());
    let ids = texts.filter_map(|text| parse_program_id(&text)).collect();
    drop(open);
    ids
}

fn parse_program_id(fdinfo: &str) -> Option<u32> {
    fdinfo.lines().find_map(|line| line.strip_prefix("prog_id:"))?.trim().parse().ok()
}
