//! Generates docs/reference/node-variables.md from the table of variables. A test fails if the page is stale.

use super::variables::{NODE_VARIABLES, is_node_variable};
use crate::NodeArgs;
use clap::{Args, Command};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use tortie_store::StoreConfig;

const VARIABLES_PAGE_HEAD: &str = "# Variables of the node

<!-- Made from the code by `make docs-reference`. Do not edit. -->

`tortie node` and `tortie up` read these environment variables, which are those of `calico/node`, of its CNI installer and of Tortie's own
options. With the Debian package, set them in `/etc/default/tortie`; in Kubernetes, in the DaemonSet. Every [setting](../settings.md) of
Felix can be set by a variable `FELIX_*` too. Values are trimmed, and an empty variable counts as not set. A switch is on for every value
except `false`, `0`, `no`, `n` and `f`.
";

const VARIABLES_PAGE_NOTES: &str = "
## Address detection

Values of `IP_AUTODETECTION_METHOD` and `IP6_AUTODETECTION_METHOD`:

| method | address |
| --- | --- |
| `first-found` | the first global address on the host's interfaces, the last interface first, without interfaces of container runtimes, bridges, tunnels and pods |
| `interface=REGEX,...` | the first address of an interface whose name matches |
| `skip-interface=REGEX,...` | as `first-found`, without interfaces whose name matches |
| `cidr=NETWORK,...` | the first address in one of the networks |
| `can-reach=HOST` | the source address of packets to that host; nothing is sent |

`kubernetes-internal-ip` is not supported: set `IP` from `status.hostIP` of the pod instead. An unknown method is an error. If no address is
found, the node keeps the one in the datastore and logs a warning; without one, it does not start. A node does not start either if another
node has its address, unless `DISABLE_NODE_IP_CHECK` is set.

## Variables without effect

Calico's `WAIT_FOR_DATASTORE` (the node always waits), `CALICO_STARTUP_LOGLEVEL`, `CALICO_DISABLE_FILE_LOGGING`, `CALICO_MANAGE_CNI`,
`CALICO_NODENAME_FILE`, `CALICO_DISABLE_FELIX`, `CALICO_NETWORKING` and `CALICO_CONFD_*` are not read.
";

fn page() -> String {
    let mut page = VARIABLES_PAGE_HEAD.to_owned();
    for group in NODE_VARIABLES {
        let _ = write!(page, "\n## {}\n\n", group.title);
        if group.title == "Datastore" {
            page += "As for [calicoctl](../calicoctl.md#datastore-configuration): each is also read with the prefix `CALICO_`, which takes\n\
                precedence. If `/etc/calico/calicoctl.cfg` exists, it is used instead of these variables.\n\n";
        }
        page += "| variable | default | meaning |\n| --- | --- | --- |\n";
        for variable in group.variables {
            let default = match variable.default {
                "" => "-".to_owned(),
                default => format!("`{default}`"),
            };
            let _ = writeln!(page, "| `{}` | {default} | {} |", variable.name, variable.meaning);
        }
    }
    page + VARIABLES_PAGE_NOTES
}

/// Compares the page with the code. With `TORTIE_REFRESH=1` it writes the page first.
#[test]
fn the_variables_page_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/node-variables.md");
    if std::env::var_os("TORTIE_REFRESH").is_some() {
        std::fs::write(&path, page()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page(), "docs/reference/node-variables.md is stale: run `make docs-reference`");
}

#[test]
fn no_variable_is_listed_twice() {
    let mut listed = BTreeSet::new();
    for variable in NODE_VARIABLES.iter().flat_map(|group| group.variables) {
        assert!(listed.insert(variable.name), "{}", variable.name);
    }
}

#[test]
fn variables_of_options_are_documented() {
    let command = NodeArgs::augment_args(Command::new("node"));
    let variables = command.get_arguments().filter_map(|option| option.get_env()?.to_str());
    let variables: Vec<&str> = variables.collect();
    assert!(variables.contains(&"TORTIE_STATE_DIR"), "{variables:?}");
    let missing: Vec<&str> = variables.into_iter().filter(|name| !is_node_variable(name)).collect();
    assert!(missing.is_empty(), "add to NODE_VARIABLES: {missing:?}");
}

#[test]
fn variables_of_the_datastore_are_documented() {
    let variables = StoreConfig::recognised_variables();
    assert!(variables.iter().any(|name| name == "ETCD_ENDPOINTS"), "{variables:?}");
    let missing = variables.iter().filter(|name| {
        !is_node_variable(name) && !name.strip_prefix("CALICO_").is_some_and(is_node_variable)
    });
    let missing: Vec<&String> = missing.collect();
    assert!(missing.is_empty(), "add to NODE_VARIABLES: {missing:?}");
}

#[cfg(debug_assertions)]
#[test]
#[should_panic(expected = "add NO_SUCH_VARIABLE to NODE_VARIABLES")]
fn reading_an_undocumented_variable_fails() {
    super::EnvironmentVariables::default().get("NO_SUCH_VARIABLE");
}
