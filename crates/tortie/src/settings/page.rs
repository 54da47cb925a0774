//! Generates docs/settings.md from the parameter tables. A test fails if the page is stale.
#![cfg(test)]

use std::fmt::Write;
use std::path::Path;
use tortie_compute::{
    NodeParameters, OWN_PARAMETERS, ParameterEffect, ResolvedParameter, describe_parameter,
};

const PAGE_HEADER: &str = "# Settings

<!-- Made from the code by `make docs-settings`. Do not edit. -->

Every parameter of the node's daemon. A parameter can be set in the places below; the first place that sets it takes precedence. The
variables that the daemon reads besides these: [Variables of the node](reference/node-variables.md).

| place | example | applies to |
| --- | --- | --- |
| environment of `tortie node` | `FELIX_HEALTHPORT=9199`, case-insensitive | one node |
| `felix.cfg` (`/etc/calico/felix.cfg`, or `--felix-config FILE`) | `HealthPort = 9199`, case-insensitive | one node |
| FelixConfiguration `node.<name>` | `spec.healthPort: 9199` | one node |
| FelixConfiguration with `spec.nodeSelector` | `spec.healthPort: 9199` | the nodes that it selects; the oldest object if several select a node |
| FelixConfiguration `default` | `spec.healthPort: 9199` | all nodes |

An empty variable counts as not set. The value `none` means an empty list, an empty text or zero. Choices such as `Drop` are
case-insensitive. If a value is invalid, the log and the health page name it and the default applies; of a list, only the invalid entry is
ignored.

`tortie settings` shows the values in effect on a node and their sources.
";

/// Details that names and defaults do not show.
const PAGE_NOTES: &str = "
### Log

The node logs to standard error, which systemd or the container runtime stores. It also logs to a file if `logFilePath` or
`logSeverityFile` is set to a value other than `none`, and to the host's syslog (`/dev/log`) if `logSeveritySys` is; unlike Felix, it does
not use their defaults. The node renames the file when it reaches 10 MiB and keeps three renamed files. Lines that arrive faster than they
can be written are dropped and counted in `felix_logs_dropped`; lines that cannot be written are counted in `felix_log_errors`. With
`debugDisableLogDropping` the task that logs waits instead. `logDebugFilenameRegex` limits debug lines to source files whose path matches,
for example `dataplane/src/policy`. If the variable `RUST_LOG` is set, it replaces `logSeverityScreen`.

### Packet marks

The node uses these bits of `nftablesMarkMask`, or of `iptablesMarkMask` if only that is set: the lowest marks packets that policy has
allowed, the next one packets that a policy has passed to the next tier, and the sixth (the last one if there are fewer) packets that
WireGuard sends. Felix uses the same bits for these purposes. The node changes no other bit of a packet's mark. If the mask has fewer than
two bits, or three with WireGuard, the log and the health page report it and the node keeps the bits that it uses.

### Metadata service of OpenStack

`metadataAddr` and `metadataPort` take effect only if a prefix in `interfacePrefix` is `tap`, as with OpenStack. Requests of workloads to
169.254.169.254:80 are then sent to that address; if it is an address of the host, policy does not apply to them. For a loopback address the
node sets `route_localnet` on workload interfaces and blocks all other connections from workloads to loopback addresses.

### Debug server

If `debugPort` is set, the node serves `/debug` on `debugHost`: memory, tasks and the processor time of each thread.

### Flow offload

With `nftablesFlowTableOffload: All`, packets of connections that policy has allowed bypass all rules (a flow table of the kernel, in
software only). This applies to workload interfaces and to the host's interfaces that `mtuIfacePattern` matches. Policy is evaluated only for
new connections in any case. Workloads with `qosControls` are excluded, because the node must count or change each of their packets.
`CutDeniedFlows` disables the offload, because the kernel does not allow an offloaded connection to be deleted. If the kernel has no flow
tables, the log and the health page report it, and everything else works. As with Calico, the node writes `Disabled` into its own
FelixConfiguration, which overrides the object `default`: enable the offload in `node.<name>`, in the environment or in `felix.cfg`.

### Live migration

`ipv4ElevatedRoutePriority`, `ipv6ElevatedRoutePriority` and `liveMigrationRouteConvergenceTime` apply to virtual machines that move from
one node to another ([BGP](bgp.md#machines-that-move)).
";

fn render_page() -> String {
    let mut page = PAGE_HEADER.to_owned();
    let parameters: Vec<ResolvedParameter> = NodeParameters::default().all().collect();
    let is_own =
        |in_force: &ResolvedParameter| OWN_PARAMETERS.iter().any(|own| own.key == in_force.parameter.key);
    let _ = write!(
        page,
        "
## Parameters that take effect

*Live* means that a change takes effect immediately; *at restart*, when `tortie node` is started again. *Since* is the version of Tortie.

| FelixConfiguration | environment | felix.cfg | default | meaning | takes effect | since |
| --- | --- | --- | --- | --- | --- | --- |
"
    );
    for in_force in &parameters {
        let (when, since) = match in_force.effect {
            ParameterEffect::Live { since } => ("live", since),
            ParameterEffect::AtStart { since } => ("at restart", since),
            ParameterEffect::None { .. } => continue,
        };
        let meaning = describe_parameter(in_force.parameter.key);
        let _ = writeln!(
            page,
            "| {} | {meaning} | {when} | {since} |",
            render_places(in_force, is_own(in_force))
        );
    }
    page += PAGE_NOTES;
    let _ = write!(
        page,
        "
## Parameters without effect

Tortie accepts them, so that the configuration of a Calico cluster can be used unchanged. If one of them has a value other than its
default, the log and the health page report it.

| FelixConfiguration | environment | felix.cfg | default | reason |
| --- | --- | --- | --- | --- |
"
    );
    for in_force in &parameters {
        if let ParameterEffect::None { why } = in_force.effect {
            let _ = writeln!(page, "| {} | {why} |", render_places(in_force, is_own(in_force)));
        }
    }
    page
}

/// Renders the places where a parameter can be set, and its default.
fn render_places(in_force: &ResolvedParameter, own: bool) -> String {
    let parameter = in_force.parameter;
    let key = if own { "-".to_owned() } else { format!("`{}`", parameter.key) };
    let mut letters = parameter.name.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    let name: String = first.into_iter().chain(letters).collect();
    let (variable, local) = match parameter.key {
        // It selects the nodes that an object applies to.
        "nodeSelector" => ("-".to_owned(), "-".to_owned()),
        _ => (format!("`FELIX_{}`", name.to_ascii_uppercase()), format!("`{name}`")),
    };
    let default = match parameter.default {
        "" => "-".to_owned(),
        default => format!("`{}`", default.replace('|', "\\|").replace(',', ", ")),
    };
    format!("{key} | {variable} | {local} | {default}")
}

/// `TORTIE_REFRESH=1` writes the page instead.
#[test]
fn the_page_of_settings_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/settings.md");
    if std::env::var_os("TORTIE_REFRESH").is_some() {
        std::fs::write(&path, render_page()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == render_page(), "docs/settings.md is stale: run `make docs-settings`");
}

#[test]
fn every_parameter_is_on_the_page_once() {
    let page = render_page();
    for in_force in NodeParameters::default().all() {
        let own = OWN_PARAMETERS.iter().any(|own| own.key == in_force.parameter.key);
        let row = format!("\n| {} |", render_places(&in_force, own));
        assert_eq!(page.matches(&row).count(), 1, "{row}");
    }
}

#[test]
fn every_effective_parameter_has_a_description() {
    for in_force in NodeParameters::default().all() {
        let is_effective = !matches!(in_force.effect, ParameterEffect::None { .. });
        let key = in_force.parameter.key;
        assert_eq!(!describe_parameter(key).is_empty(), is_effective, "{key}");
    }
}
