//! Tests of the documentation: every page is in the table of contents, every link has a target, every path in the
//! architecture documentation exists, and every command in a page is run verbatim and must print the output that the
//! page shows.
//!
//! Blocks marked `sh` are scripts that must succeed. Blocks marked `console` are sessions: a line that begins with `$
//! ` is run, and the lines after it must equal its output (standard output and standard error, as on a terminal).
//! `[...]` matches any text within a line, a line `...` matches any number of lines. A command whose output differs
//! is retried for a while, as a user would do. A block that cannot be run here has a comment above it with the
//! reason: `<!-- not run: ... -->`.
//!
//! `TORTIE_REFRESH=1 cargo test -p tortie --test docs` writes the actual output into the pages, to be reviewed and
//! committed.
#![allow(clippy::unwrap_used, clippy::panic)]

mod blocks;
mod links;
mod package;
mod paths;
mod run;
mod sandbox;
mod shown;
mod summary;

use std::path::{Path, PathBuf};

/// Pages whose blocks are all run elsewhere or not at all, with the place or reason.
const RUN_ELSEWHERE: &[(&str, &str)] = &[
    ("docs/policy.md", "compared with transcripts by cli/transcripts.rs"),
    ("docs/kubernetes.md", "it needs a Kubernetes cluster"),
    (
        "docs/openstack.md",
        "it needs an OpenStack deployment; crates/openstack/tests/neutron runs the driver in a real Neutron",
    ),
];

macro_rules! tour {
    ($($name:ident($page:literal))*) => {
        $(#[test] fn $name() { run::run($page); })*
        const RUN: &[&str] = &[$($page),*];
    };
}

tour! {
    readme("README.md")
    get_started("docs/get-started.md")
    policy_in_ten_minutes("docs/tutorials/policy.md")
    http_policy("docs/tutorials/http-policy.md")
    protect_a_host("docs/tutorials/protect-a-host.md")
    peer_with_your_router("docs/tutorials/peer-with-your-router.md")
    route_reflector("docs/how-to/route-reflector.md")
    move_from_calico("docs/tutorials/move-from-calico.md")
    this_host_as_a_node("docs/how-to/this-host-as-a-node.md")
    find_mistakes("docs/how-to/find-mistakes.md")
    back_up_and_restore("docs/how-to/back-up-and-restore.md")
    crashes_and_reboots("docs/how-to/crashes-and-reboots.md")
    upgrade("docs/how-to/upgrade.md")
    etcd_with_tls("docs/how-to/etcd-with-tls.md")
    several_clusters("docs/how-to/several-clusters.md")
    lab("docs/lab.md")
    bgp("docs/bgp.md")
    addresses("docs/addresses.md")
    install("docs/how-to/install.md")
    embedded_store("docs/embedded-store.md")
    troubleshoot("docs/troubleshoot.md")
    hub("docs/hub.md")
}

/// Returns the root of the repository.
fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn read(page: &str) -> String {
    std::fs::read_to_string(repository().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// Returns the path of every Markdown file of the documentation, relative to the root.
fn pages() -> Vec<String> {
    let mut found = vec!["README.md".to_owned(), "ARCHITECTURE.md".to_owned(), "CONTRIBUTING.md".to_owned()];
    let mut pending = vec![PathBuf::from("docs")];
    while let Some(dir) = pending.pop() {
        for entry in std::fs::read_dir(repository().join(&dir)).unwrap() {
            let path = dir.join(entry.unwrap().file_name());
            if repository().join(&path).is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path.display().to_string());
            }
        }
    }
    found.sort();
    found
}

#[test]
fn every_command_block_runs_or_has_a_reason() {
    let mut forgotten = Vec::new();
    for page in pages() {
        let run = RUN.contains(&page.as_str()) || RUN_ELSEWHERE.iter().any(|(other, _)| *other == page);
        for block in blocks::of(&read(&page)) {
            if block.is_run() && !run {
                forgotten.push(format!("{page}:{}", block.line));
            }
        }
    }
    assert!(
        forgotten.is_empty(),
        "these blocks of commands are not run: add the page to the tour in tests/docs/main.rs, or say above the block \
         why it cannot be run (<!-- not run: ... -->):\n{}",
        forgotten.join("\n")
    );
}

/// A task of a new user, the page that shows it, and a command that performs it.
const NEW_USER_TASKS: [(&str, &str, &str); 15] = [
    ("make a cluster", "docs/get-started.md", "tortie lab up"),
    ("write a policy", "docs/tutorials/policy.md", "calicoctl apply"),
    ("ask why traffic passes or not", "docs/tutorials/policy.md", "tortie explain --from"),
    ("see what a change would do", "docs/tutorials/policy.md", "tortie diff"),
    ("allow only some HTTP requests", "docs/tutorials/http-policy.md", "methods: [GET]"),
    ("protect a host", "docs/tutorials/protect-a-host.md", "kind: HostEndpoint"),
    ("peer with a BIRD, with a password", "docs/tutorials/peer-with-your-router.md", "secretKeyRef"),
    ("filter routes", "docs/tutorials/peer-with-your-router.md", "kind: BGPFilter"),
    ("use a reflector", "docs/how-to/route-reflector.md", "routeReflectorClusterID"),
    ("kill -9", "docs/how-to/crashes-and-reboots.md", "--kill"),
    ("etcd with TLS", "docs/how-to/etcd-with-tls.md", "ETCD_CA_CERT_FILE"),
    ("make this host a node", "docs/how-to/this-host-as-a-node.md", "tortie up"),
    ("back up", "docs/how-to/back-up-and-restore.md", "snapshot save"),
    ("migrate", "docs/tutorials/move-from-calico.md", "migrate import"),
    ("make mistakes", "docs/how-to/find-mistakes.md", "tortie analyze"),
];

#[test]
fn the_tour_covers_every_task() {
    for (task, page, command) in NEW_USER_TASKS {
        assert!(RUN.contains(&page), "{task}: {page} is not run");
        let blocks = blocks::of(&read(page));
        let mut steps = blocks.iter().filter(|block| block.is_run()).flat_map(blocks::steps);
        assert!(steps.any(|step| step.command.contains(command)), "{task}: {page} does not run {command:?}");
    }
}
