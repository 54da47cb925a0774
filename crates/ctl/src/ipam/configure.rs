//! `ipam configure`: changes the settings of IP address management.

use super::{IpamConfigureArgs, build_allocator};
use crate::failure::{CommandError, CommandResult};
use std::io::Write;
use tortie_ipam::ConfigChange;
use tortie_store::ResourceClient;

/// The longest cooldown of an address, in seconds.
const MAX_COOLDOWN_SECONDS: u32 = 1200;

/// Parses the arguments into the change to make.
pub fn parse_change(args: &IpamConfigureArgs) -> CommandResult<ConfigChange> {
    let strict_affinity = match args.strictaffinity.as_deref() {
        None => None,
        Some("true") => Some(true),
        Some("false") => Some(false),
        Some(_) => {
            return Err(CommandError::message("invalid value. Use true or false to set strictaffinity"));
        }
    };
    let max_blocks_per_host = match args.max_blocks_per_host.as_deref().map(str::parse) {
        None => None,
        Some(Ok(number)) => Some(number),
        Some(Err(_)) => {
            return Err(CommandError::message("invalid value for maxblockhost. Use a valid number"));
        }
    };
    let kubevirt_vm_address_persistence = match args.kubevirt_ip_persistence.as_deref() {
        None => None,
        Some(mode @ ("Enabled" | "Disabled")) => Some(mode.to_owned()),
        Some(_) => {
            let text = "invalid value for --kubevirt-ip-persistence. Use Enabled or Disabled";
            return Err(CommandError::message(text));
        }
    };
    let ip_cooldown_seconds = match args.ip_cooldown_seconds.as_deref() {
        None | Some("-1") => None,
        Some(text) => Some(text.parse().ok().filter(|n| *n <= MAX_COOLDOWN_SECONDS).ok_or_else(|| {
            CommandError::message(format!(
                "invalid value for --ip-cooldown-seconds. Use a number of seconds from 0 to {MAX_COOLDOWN_SECONDS}"
            ))
        })?),
    };
    let change = ConfigChange {
        strict_affinity,
        auto_allocate_blocks: None,
        max_blocks_per_host,
        kubevirt_vm_address_persistence,
        ip_cooldown_seconds,
    };
    if change == ConfigChange::default() {
        return Err(CommandError::message("at least one configuration option must be specified"));
    }
    Ok(change)
}

pub async fn configure(
    change: &ConfigChange,
    store: &ResourceClient,
    out: &mut dyn Write,
) -> CommandResult<()> {
    let config = build_allocator(store).configure(change).await?;
    if change.strict_affinity.is_some() {
        writeln!(out, "Successfully set StrictAffinity to: {}", config.strict_affinity)?;
    }
    if change.max_blocks_per_host.is_some() {
        writeln!(out, "Successfully set MaxBlocksPerHost to: {}", config.max_blocks_per_host)?;
    }
    if let Some(mode) = &change.kubevirt_vm_address_persistence {
        writeln!(out, "Successfully set KubeVirtVMAddressPersistence to: {mode}")?;
    }
    if change.ip_cooldown_seconds.is_some() {
        writeln!(out, "Successfully set IPCooldownSeconds to: {}", config.ip_cooldown_seconds)?;
    }
    Ok(())
}
