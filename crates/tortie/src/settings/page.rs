//! Generates docs/settings.md from the parameter tables. A test fails if the page is stale.
#![cfg(test)]

use std::fmt::Write;
use std::path::Path;
use tortie_compute::{NodeParameters, OWN_PARAMETERS, ParameterEffect, ResolvedParameter};

const PAGE_HEADER: &str = "# Settings

<!-- Made from the code by `make docs-settings`. Do not edit. -->

Every parameter of the node's daemon. A parameter can be set in the places below; the first that sets it wins.

| place | written as | for |
| --- | --- | --- |
| environment of `tortie node` | `FELIX_HEALTHPORT=9199`, in any case | one node |
| `felix.cfg` (`/etc/calico/felix.cfg`, or `--felix-config FILE`) | `HealthPort = 9199`, in any case | one node |
| FelixConfiguration `node.<name>` | `spec.healthPort: 9199` | one node |
| FelixConfiguration with `spec.nodeSelector` | `spec.healthPort: 9199` | the nodes it selects; of several the oldest |
| FelixConfiguration `default` | `spec.healthPort: 9199` | all nodes |

An empty variable sets nothing. `none` means nothing: an empty list, an empty text, zero. Words are compared without regard to
case. A value that cannot be read is named in the log and on the health page, and the default holds; of a list only the entry
that cannot be read is left out.

`tortie settings` shows the values in force on a node and where each comes from.
";

/// Details that names and defaults do not show.
const PAGE_NOTES: &str = "
The log goes to standard error, where systemd or the container runtime keeps it. It goes to a file too if `logFilePath` or
`logSeverityFile` is set to something else than `none`, and to the host's syslog (`/dev/log`) if `logSeveritySys` is: unlike Felix,
nothing is written to their defaults unless asked for. A file is renamed at 10 MiB, and three full ones are kept. Lines that come faster
than they can be written are dropped and counted in `felix_logs_dropped`, those that are refused in `felix_log_errors`. With
`debugDisableLogDropping` whoever logs waits instead of losing a line. Of lines for debugging,
`logDebugFilenameRegex` keeps those from source files whose path matches, such as `dataplane/src/policy`. The variable `RUST_LOG`, if it is
set, says what goes to standard error instead of `logSeverityScreen`.

Of the bits of `nftablesMarkMask` (or of `iptablesMarkMask`, where only that is set) the lowest marks packets that policy has allowed, the next
those that a policy has passed on, and the sixth, or the last if there are fewer, what WireGuard sends: the bits that Felix uses for the same. No other
bit of a packet's mark is changed. A mask with fewer than two bits, or three with WireGuard, is named in the log and on the health page,
and the bits in use stay in use.

`metadataAddr` and `metadataPort` count where a prefix of `interfacePrefix` is `tap`, as with OpenStack: what a workload asks of
169.254.169.254:80 is sent there, and where the host itself answers, no policy keeps it from asking. For an address of the loopback,
`route_localnet` is set for interfaces of workloads; the rest of the loopback stays closed to them.

`debugPort` serves `/debug`: memory, tasks and the processor time of each thread, on `debugHost`. Without a port nothing is served.

With `nftablesFlowTableOffload: All`, connections that policy has let pass go past all rules from then on (a flow table of the kernel, software only): those of
interfaces of workloads, and of interfaces of the host that `mtuIfacePattern` matches. Policy is about new connections anyway. Workloads with `qosControls` are left out, since their packets are counted
or changed one by one. `CutDeniedFlows` switches it off: the kernel lets nobody delete a connection that is past the rules. A kernel without flow tables is named in the log and on
the health page, and all else works. A node's own
object is filled in with `Disabled`, as Calico does it, which wins over the object `default`: set it in `node.<name>`, in the environment or in `felix.cfg`.

`ipv4ElevatedRoutePriority`, `ipv6ElevatedRoutePriority` and `liveMigrationRouteConvergenceTime` are about virtual machines that
move from one node to another ([BGP](bgp.md#machines-that-move)).
";

fn page() -> String {
    let mut page = PAGE_HEADER.to_owned();
    let parameters: Vec<ResolvedParameter> = NodeParameters::default().all().collect();
    let is_own =
        |in_force: &ResolvedParameter| OWN_PARAMETERS.iter().any(|own| own.key == in_force.parameter.key);
    let _ = write!(
        page,
        "
## Parameters that take effect

*Live* means that a change holds at once; *at restart*, when `tortie node` starts again. *Since* is the version of Tortie.

| FelixConfiguration | environment | felix.cfg | default | takes effect | since |
| --- | --- | --- | --- | --- | --- |
"
    );
    for in_force in &parameters {
        let (when, since) = match in_force.effect {
            ParameterEffect::Live { since } => ("live", since),
            ParameterEffect::AtStart { since } => ("at restart", since),
            ParameterEffect::None { .. } => continue,
        };
        let _ = writeln!(page, "| {} | {when} | {since} |", places(in_force, is_own(in_force)));
    }
    page += PAGE_NOTES;
    let _ = write!(
        page,
        "
## Parameters without effect

They are accepted, so that the configuration of a Calico cluster can be kept as it is. One that is set to something else than its
default is named in the log and on the health page.

| FelixConfiguration | environment | felix.cfg | default | why |
| --- | --- | --- | --- | --- |
"
    );
    for in_force in &parameters {
        if let ParameterEffect::None { why } = in_force.effect {
            let _ = writeln!(page, "| {} | {why} |", places(in_force, is_own(in_force)));
        }
    }
    page
}

/// Renders the places where a parameter can be set, and its default.
fn places(in_force: &ResolvedParameter, own: bool) -> String {
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
        std::fs::write(&path, page()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page(), "docs/settings.md is stale: run `make docs-settings`");
}

#[test]
fn every_parameter_is_on_the_page_once() {
    let page = page();
    for in_force in NodeParameters::default().all() {
        let own = OWN_PARAMETERS.iter().any(|own| own.key == in_force.parameter.key);
        let row = format!("\n| {} |", places(&in_force, own));
        assert_eq!(page.matches(&row).count(), 1, "{row}");
    }
}
