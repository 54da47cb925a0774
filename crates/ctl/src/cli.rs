//! The command tree of calicoctl with its help texts.

use crate::kind_word::KindWord;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use tortie_store::StoreConfig;

/// The list of kinds for help texts.
macro_rules! kinds {
    () => {
        "\
Kinds: bgpconfigurations, bgpfilters, bgppeers, caliconodestatuses,
clusterinformations, felixconfigurations, globalnetworkpolicies (gnp),
globalnetworksets, hostendpoints (hep), ipamconfigurations, ippools,
ipreservations, kubecontrollersconfigurations, networkpolicies (np),
networksets, nodes, profiles, stagedglobalnetworkpolicies,
stagedkubernetesnetworkpolicies, stagednetworkpolicies, tiers,
workloadendpoints (wep)"
    };
}

/// Manage Calico resources in the datastore: policies, pools, peers, endpoints and the rest.
///
/// The datastore is configured by the file given with --config, else by the environment (ETCD_ENDPOINTS and so on, each
/// also with the prefix CALICO_). Without configuration, the embedded datastore of this host is used
/// (/run/tortie/datastore.sock).
#[derive(Debug, Parser)]
#[command(name = "calicoctl", disable_version_flag = true, after_help = KINDS_AND_EXAMPLES)]
pub struct Cli {
    #[command(flatten)]
    pub global: GlobalArgs,
    #[command(subcommand)]
    pub command: CtlCommand,
}

#[derive(Clone, Debug, Args)]
pub struct GlobalArgs {
    /// Log level, on stderr: panic, fatal, error, warn, info or debug
    #[arg(short = 'l', long, global = true, value_name = "LEVEL", default_value = "panic")]
    pub log_level: String,
    /// Context of the kubeconfig file, if the datastore is Kubernetes
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// Do not warn if the cluster runs a different version than this client
    #[arg(long, global = true)]
    pub allow_version_mismatch: bool,
}

#[derive(Debug, Subcommand)]
pub enum CtlCommand {
    /// Create resources from a file; fails for those that exist
    Create(CreateArgs),
    /// Create resources from a file, and update those that exist
    Apply(FromFileArgs),
    /// Update resources from a file; fails for those that do not exist
    Replace(FromFileArgs),
    /// Delete resources, named in a file or by kind and name
    Delete(DeleteArgs),
    /// Show resources as a table, as YAML or as JSON
    Get(GetArgs),
    /// Change part of a resource
    Patch(PatchArgs),
    /// Set, change or remove a label of a resource
    Label(LabelArgs),
    /// Check resources in a file without a datastore
    Validate(FromFileArgs),
    /// Show, check and release addresses
    Ipam(crate::ipam::IpamArgs),
    /// Show the state of this host's node, run it, and collect its diagnostics
    Node(crate::node::CtlNodeArgs),
    /// Collect diagnostics of the cluster
    Cluster(crate::cluster::ClusterArgs),
    /// Migrate the datastore
    Datastore(CtlDatastoreArgs),
    /// Show the version of this client and of the cluster
    Version(VersionArgs),
    /// Print a completion script for a shell
    Completion(CompletionArgs),
}

#[derive(Clone, Debug, Args)]
pub struct ConnectionArgs {
    /// Configuration file of the datastore (CalicoAPIConfig, YAML or JSON); also CALICOCTL_CONFIG
    #[arg(
        short = 'c',
        long,
        value_name = "FILE",
        env = "CALICOCTL_CONFIG",
        hide_env = true,
        value_parser = config_file,
        default_value = StoreConfig::DEFAULT_FILE
    )]
    pub config: PathBuf,
}

/// Returns the path of the configuration file. An environment variable that is set but empty counts as unset.
fn config_file(text: &str) -> Result<PathBuf, std::convert::Infallible> {
    Ok(PathBuf::from(if text.is_empty() { StoreConfig::DEFAULT_FILE } else { text }))
}

#[derive(Clone, Debug, Args)]
pub struct NamespaceArgs {
    /// Namespace of namespaced resources; defaults to that of the object, else "default"
    #[arg(short = 'n', long, value_name = "NAME")]
    pub namespace: Option<String>,
}

// How a file or directory is read. Not a doc comment: clap would use it as the help text of every command
// with these options.
#[derive(Clone, Debug, Args)]
pub struct FileReadArgs {
    /// Read sub-directories too
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// Do not fail if the file or directory has no resources
    #[arg(long)]
    pub skip_empty: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  calicoctl apply -f policy.yaml
  calicoctl apply -f manifests/ --recursive
  kustomize build | calicoctl apply -f -
  calicoctl validate -f policy.yaml")]
pub struct FromFileArgs {
    /// A file, "-" for standard input, or a directory of .yaml, .yml and .json files
    #[arg(short = 'f', long, value_name = "FILE")]
    pub filename: PathBuf,
    #[command(flatten)]
    pub reading: FileReadArgs,
    #[command(flatten)]
    pub connection: ConnectionArgs,
    #[command(flatten)]
    pub namespace: NamespaceArgs,
}

#[derive(Debug, Args)]
pub struct CreateArgs {
    #[command(flatten)]
    pub input: FromFileArgs,
    /// Do not fail for resources that exist; leave them unchanged
    #[arg(long)]
    pub skip_exists: bool,
}

/// Resources by file, or by kind and name.
#[derive(Debug, Args)]
pub struct SelectionArgs {
    /// A kind, its plural or an alias, case-insensitive: ippool, gnp, wep, ...
    #[arg(value_name = "KIND", value_parser = KindWord, conflicts_with = "filename", hide_possible_values = true)]
    pub kind: Option<String>,
    /// Names of resources of that kind
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// A file, "-" for standard input, or a directory of .yaml, .yml and .json files
    #[arg(short = 'f', long, value_name = "FILE")]
    pub filename: Option<PathBuf>,
    #[command(flatten)]
    pub reading: FileReadArgs,
    #[command(flatten)]
    pub connection: ConnectionArgs,
    #[command(flatten)]
    pub namespace: NamespaceArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  calicoctl delete networkpolicy web -n shop
  calicoctl delete -f policy.yaml
  calicoctl delete bgppeer old --skip-not-exists")]
pub struct DeleteArgs {
    #[command(flatten)]
    pub selection: SelectionArgs,
    /// Do not fail for resources that do not exist
    #[arg(short = 's', long)]
    pub skip_not_exists: bool,
    /// Also delete IP pools that are in use; this interrupts the traffic of their workloads
    #[arg(long)]
    pub force: bool,
}

/// Show resources as a table, as YAML or as JSON.
///
/// With a kind alone, all resources of that kind in the namespace are listed; with names or a file, only
/// those.
#[derive(Debug, Args)]
#[command(after_help = GET_FORMATS)]
pub struct GetArgs {
    #[command(flatten)]
    pub selection: SelectionArgs,
    /// ps, wide, yaml, json, custom-columns=A,B, go-template=TEXT or go-template-file=FILE
    #[arg(short = 'o', long, value_name = "FORMAT", default_value = "ps")]
    pub output: String,
    /// List namespaced resources of every namespace
    #[arg(short = 'A', long, short_alias = 'a')]
    pub all_namespaces: bool,
    /// Omit the fields that are specific to this cluster: namespace, uid, resourceVersion and times (only
    /// with NAME)
    #[arg(long)]
    pub export: bool,
    /// Keep printing changes until interrupted (with a kind only; not in Calico's calicoctl)
    #[arg(short = 'w', long, conflicts_with_all = ["filename", "export"])]
    pub watch: bool,
}

const GET_FORMATS: &str = concat!(
    "\
Output formats:
  ps                     a table (the default)
  wide                   the table with more columns
  custom-columns=A,B     the table with just these columns
  yaml, json             the resources, fit to be given to apply again
  go-template=TEXT       a Go template over the list of results, with fields by
                         their Go name (.ObjectMeta.Name, .Spec.CIDR) or their
                         JSON name (.metadata.name, .spec.cidr); it has join,
                         joinAndTruncate and config besides Go's functions
  go-template-file=FILE  the same, from a file

With --watch, tables have a first column EVENT (ADDED, MODIFIED or DELETED),
and yaml and json print one {type, object} for each change.

Examples:
  calicoctl get ippools -o wide
  calicoctl get networkpolicies --all-namespaces
  calicoctl get node node1 -o yaml
  calicoctl get workloadendpoints -w

",
    kinds!()
);

const KINDS_AND_EXAMPLES: &str = concat!(
    "\
Examples:
  calicoctl get nodes -o wide
  calicoctl apply -f policy.yaml
  calicoctl patch ippool pods -p '{\"spec\": {\"disabled\": true}}'
  calicoctl ipam show --show-blocks

",
    kinds!()
);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PatchType {
    /// Kubernetes strategic merge: maps are merged, lists replaced; $patch, $retainKeys and
    /// $deleteFromPrimitiveList are supported
    Strategic,
    /// A list of JSON patch operations (RFC 6902)
    Json,
    /// JSON merge patch (RFC 7386)
    Merge,
}

#[derive(Debug, Args)]
pub struct PatchArgs {
    /// A kind, its plural or an alias, case-insensitive: ippool, gnp, wep, ...
    #[arg(value_name = "KIND", value_parser = KindWord, hide_possible_values = true)]
    pub kind: String,
    /// Name of the resource
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The patch, as JSON or YAML
    #[arg(short = 'p', long, value_name = "PATCH")]
    pub patch: String,
    /// Type of the patch
    #[arg(short = 't', long = "type", value_name = "TYPE", default_value = "strategic")]
    pub patch_type: PatchType,
    #[command(flatten)]
    pub connection: ConnectionArgs,
    #[command(flatten)]
    pub namespace: NamespaceArgs,
}

#[derive(Debug, Args)]
pub struct LabelArgs {
    /// A kind, its plural or an alias, case-insensitive: ippool, gnp, wep, ...
    #[arg(value_name = "KIND", value_parser = KindWord, hide_possible_values = true)]
    pub kind: String,
    /// Name of the resource
    #[arg(value_name = "NAME")]
    pub name: String,
    /// KEY=VALUE to set a label; KEY, with --remove, to remove it
    #[arg(value_name = "LABEL")]
    pub label: String,
    /// Change the value if the label exists already
    #[arg(long, conflicts_with = "remove")]
    pub overwrite: bool,
    /// Remove the label
    #[arg(long)]
    pub remove: bool,
    #[command(flatten)]
    pub connection: ConnectionArgs,
    #[command(flatten)]
    pub namespace: NamespaceArgs,
}

#[derive(Debug, Args)]
pub struct CtlDatastoreArgs {
    #[command(subcommand)]
    pub command: DatastoreCommand,
}

#[derive(Debug, Subcommand)]
pub enum DatastoreCommand {
    /// Migrate a datastore: lock it, export it, import it elsewhere, unlock
    Migrate(MigrateArgs),
    /// Rename default-tier policies that are stored under their old names (default.NAME) to NAME
    MigratePolicyNames(ConnectionArgs),
}

#[derive(Debug, Args)]
pub struct MigrateArgs {
    #[command(subcommand)]
    pub command: MigrateCommand,
}

#[derive(Debug, Subcommand)]
pub enum MigrateCommand {
    /// Print the contents of a locked datastore, for `import` elsewhere
    ///
    /// Everything that nodes need is exported, including workload endpoints, so that running containers keep
    /// their network. A node with a reference to a Kubernetes node gets that node's name; other nodes keep
    /// theirs.
    #[command(after_help = "Example:
  calicoctl datastore migrate lock
  calicoctl datastore migrate export > calico.yaml")]
    Export(ConnectionArgs),
    /// Load an exported file into an empty datastore, and leave it locked
    ///
    /// The target may contain nothing but ClusterInformation, the built-in tiers and, if it is Kubernetes,
    /// the resources that are derived from native objects.
    #[command(after_help = "Example:
  calicoctl datastore migrate import -f calico.yaml
  calicoctl datastore migrate unlock")]
    Import(ImportArgs),
    /// Lock the datastore: nodes do not change it until it is unlocked
    Lock(ConnectionArgs),
    /// Unlock the datastore
    Unlock(ConnectionArgs),
}

#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The exported file, "-" for standard input
    #[arg(short = 'f', long, value_name = "FILE")]
    pub filename: PathBuf,
    #[command(flatten)]
    pub connection: ConnectionArgs,
}

#[derive(Debug, Args)]
pub struct VersionArgs {
    /// Show only the version of this client
    #[arg(long)]
    pub client: bool,
    /// Repeat the query at this interval (30s, 5m, ...) and print changes
    #[arg(long, value_name = "DURATION")]
    pub poll: Option<String>,
    #[command(flatten)]
    pub connection: ConnectionArgs,
}

#[derive(Debug, Args)]
pub struct CompletionArgs {
    /// Your shell
    #[arg(value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &str) -> Cli {
        Cli::try_parse_from(line.split(' ')).unwrap_or_else(|e| panic!("{line}: {e}"))
    }

    #[test]
    fn the_tree_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_may_stand_anywhere_in_both_spellings() {
        for line in [
            "calicoctl get -n shop wep -o wide",
            "calicoctl get wep --namespace=shop --output=wide",
            "calicoctl get wep -o=wide -nshop",
            "calicoctl --log-level=info get wep --output wide --namespace shop --allow-version-mismatch",
            "calicoctl get wep --output wide --namespace shop -l debug --context staging",
        ] {
            let CtlCommand::Get(get) = parse(line).command else { panic!("{line}") };
            assert_eq!(get.output, "wide");
            assert_eq!(get.selection.kind.as_deref(), Some("wep"));
            assert_eq!(get.selection.namespace.namespace.as_deref(), Some("shop"));
        }
    }

    #[test]
    fn all_namespaces_has_its_old_spelling() {
        for flag in ["-A", "-a", "--all-namespaces"] {
            let CtlCommand::Get(get) = parse(&format!("calicoctl get np {flag}")).command else { panic!() };
            assert!(get.all_namespaces);
        }
    }

    #[test]
    fn help_names_every_kind() {
        for help in [KINDS_AND_EXAMPLES, GET_FORMATS] {
            let words: Vec<&str> = help.split([' ', ',', '\n']).collect();
            for kind in crate::kind_word::CLI_KINDS {
                assert!(words.contains(&kind.plural()), "{kind} is not in\n{help}");
            }
        }
    }

    #[test]
    fn a_kind_and_a_file_exclude_each_other() {
        assert!(Cli::try_parse_from(["calicoctl", "get", "np", "-f", "x.yaml"]).is_err());
        assert!(Cli::try_parse_from(["calicoctl", "create"]).is_err());
    }
}
