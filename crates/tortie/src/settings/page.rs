//! docs/settings.md, made from the tables of the code; a test says when it is stale.
#![cfg(test)]

use std::fmt::Write;
use std::path::Path;
use tortie_compute::{Effect, InForce, OWN_PARAMETERS, Parameters};

const HEAD: &str = "# Settings

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

fn page() -> String {
    let mut page = HEAD.to_owned();
    let parameters: Vec<InForce> = Parameters::default().all().collect();
    let is_own = |in_force: &InForce| OWN_PARAMETERS.iter().any(|own| own.key == in_force.parameter.key);
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
            Effect::Live { since } => ("live", since),
            Effect::AtStart { since } => ("at restart", since),
            Effect::None { .. } => continue,
        };
        let _ = writeln!(page, "| {} | {when} | {since} |", places(in_force, is_own(in_force)));
    }
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
        if let Effect::None { why } = in_force.effect {
            let _ = writeln!(page, "| {} | {why} |", places(in_force, is_own(in_force)));
        }
    }
    page
}

/// Where it can be set, and its default.
fn places(in_force: &InForce, own: bool) -> String {
    let parameter = in_force.parameter;
    let key = if own { "-".to_owned() } else { format!("`{}`", parameter.key) };
    let mut letters = parameter.name.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    let name: String = first.into_iter().chain(letters).collect();
    let (variable, local) = match parameter.key {
        // It says which nodes an object is for.
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
fn the_page_of_settings_is_what_the_code_says() {
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
    for in_force in Parameters::default().all() {
        let own = OWN_PARAMETERS.iter().any(|own| own.key == in_force.parameter.key);
        let row = format!("\n| {} |", places(&in_force, own));
        assert_eq!(page.matches(&row).count(), 1, "{row}");
    }
}
