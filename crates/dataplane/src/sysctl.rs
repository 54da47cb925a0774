//! Kernel settings below /proc/sys/net. The kernel shows each thread the files of the thread's network namespace, so
//! they are read and written on a thread inside the target namespace.

use crate::error::{DataplaneError, DataplaneResult};
use crate::failure::KernelObject;
use crate::faults::KernelFaults;
use crate::netns::Netns;
use std::io::ErrorKind;
use std::path::Path;

/// A setting and its desired value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SysctlSetting {
    /// Path below /proc/sys, with slashes: interface names may contain dots.
    pub key: String,
    pub value: i32,
    pub on_failure: OnFailure,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OnFailure {
    Fail,
    /// The workload works without the setting.
    Warn,
}

impl SysctlSetting {
    pub fn new(key: String, value: i32) -> SysctlSetting {
        SysctlSetting { key, value, on_failure: OnFailure::Fail }
    }

    pub fn lenient(key: String, value: i32) -> SysctlSetting {
        SysctlSetting { key, value, on_failure: OnFailure::Warn }
    }
}

/// Reads one setting inside `netns`; returns `None` if the kernel does not have it.
pub async fn read(netns: &Netns, key: &str) -> DataplaneResult<Option<i32>> {
    let path = Path::new("/proc/sys").join(key);
    netns.within(move || std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok())).await
}

/// Writes the settings that differ; tries all, and returns the first failure of a required one.
pub async fn write(netns: &Netns, settings: Vec<SysctlSetting>) -> DataplaneResult<()> {
    if settings.is_empty() {
        return Ok(());
    }
    let faults = netns.faults().clone();
    netns.within(move || write_here(&settings, &faults)).await?
}

fn write_here(settings: &[SysctlSetting], faults: &KernelFaults) -> DataplaneResult<()> {
    let mut outcome = Ok(());
    for setting in settings {
        let Err(error) = write_one(setting, faults) else { continue };
        match setting.on_failure {
            OnFailure::Warn => tracing::warn!(%error, "cannot write an optional sysctl"),
            OnFailure::Fail if outcome.is_ok() => outcome = Err(error),
            OnFailure::Fail => {}
        }
    }
    outcome
}

fn write_one(setting: &SysctlSetting, faults: &KernelFaults) -> DataplaneResult<()> {
    let path = Path::new("/proc/sys").join(&setting.key);
    let key = setting.key.replace('/', ".");
    let wanted = setting.value.to_string();
    if let Err(error) = faults.check(|| KernelObject::Sysctl { key: key.clone() }) {
        return Err(DataplaneError::Sysctl { key, value: wanted, reason: error.to_string() });
    }
    // Read first: a setting that is already correct must not fail if /proc/sys is read-only.
    if std::fs::read_to_string(&path).is_ok_and(|text| text.trim() == wanted) {
        return Ok(());
    }
    std::fs::write(&path, &wanted).map_err(|error| DataplaneError::Sysctl {
        key,
        value: wanted,
        reason: match error.kind() {
            ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => {
                format!("/proc/sys is read-only here ({error}); run privileged or mount it writable")
            }
            ErrorKind::NotFound => "this kernel or interface does not have it".into(),
            _ => error.to_string(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_that_does_not_exist_is_named() {
        let error = write_here(
            &[SysctlSetting::new("net/ipv4/conf/no-such-if/forwarding".into(), 1)],
            &KernelFaults::default(),
        )
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "sysctl net.ipv4.conf.no-such-if.forwarding=1: this kernel or interface does not have it"
        );
    }

    #[test]
    fn a_lenient_setting_may_be_missing() {
        let setting = SysctlSetting::lenient("net/ipv4/conf/no-such-if/forwarding".into(), 1);
        write_here(&[setting], &KernelFaults::default()).unwrap();
    }
}
