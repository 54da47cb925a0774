//! `tortie up` makes this host a node with one command, `tortie down` reverts it.
//!
//! Everything is recorded before it is created, in `up.json` of the state directory, so that `down` also works after a
//! crash.

mod daemon_log;
mod manifest;
mod plugins;
mod process;
mod supervise;
mod systemd;
mod workloads;

pub use daemon_log::dropped_lines;
pub use supervise::{SuperviseArgs, supervise};

use crate::node::FELIX_TIMEOUT_SECONDS;
use clap::{Args, ValueEnum};
use manifest::UpManifest;
use plugins::CniInstallation;
use process::HostDaemon;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tortie_cni::CniPlugin;
use tortie_ctl::CommandError;
use tortie_model::Kind;
use tortie_node::{
    AttachmentRecord, CniFiles, LivePodHandling, NodeArgs, PolicyHandover, RemovedFile, read_attachments,
};
use tortie_process::wait_until;
use tortie_store::{ResourceClient, StoreClient, StoreConfig, StoreError};

/// Time limit for a daemon to become ready on a busy machine.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for the node to remove its routes from the kernel after its blocks were released.
const ROUTE_REMOVAL_DELAY: Duration = Duration::from_secs(1);
/// Number of log lines shown when a daemon fails to start.
const SHOWN_LOG_LINES: usize = 10;

#[derive(Args, Debug)]
pub struct UpArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// Directory in which the container runtime looks for CNI plugins
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    cni_bin_dir: PathBuf,
    /// Directory in which the container runtime looks for network configurations
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d")]
    cni_conf_dir: PathBuf,
    /// Name of the network that containers join [default: the name in Calico's configuration if there is one, otherwise
    /// tortie]
    #[arg(long, value_name = "NAME")]
    network: Option<String>,
    /// Also assign IPv6 addresses to containers
    #[arg(long)]
    ipv6: bool,
    /// Restart the daemons, for example with a new binary; containers keep their network
    #[arg(long)]
    restart: bool,
    /// Check that this host can become a node, without changing anything: the CNI files, their directories and the
    /// datastore
    #[arg(long, conflicts_with = "restart")]
    check: bool,
    /// Service manager of the daemons: systemd, or Tortie's own supervisor
    #[arg(long, value_name = "MANAGER", value_enum, default_value = "auto")]
    service_manager: ServiceManager,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ServiceManager {
    /// systemd, if it is running and the default directories are used
    Auto,
    /// systemd services, which also start after a reboot
    Systemd,
    /// Tortie's own supervisor; after a reboot run `tortie up` again
    Own,
}

#[derive(Args, Debug)]
pub struct DownArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// Remove the network of running containers
    #[arg(long)]
    force: bool,
    /// Return the host to Calico: containers keep their network, the previous CNI files are restored, and the node
    /// stays in the datastore
    #[arg(long, conflicts_with_all = ["force", "purge"])]
    keep_pods: bool,
    /// With --keep-pods: how long to wait until Felix's chains protect every endpoint that Tortie's policy protects;
    /// otherwise nothing is removed
    #[arg(long, value_name = "SECONDS", default_value_t = FELIX_TIMEOUT_SECONDS, requires = "keep_pods", conflicts_with = "now")]
    felix_timeout: u64,
    /// With --keep-pods: remove policy immediately. Running containers have no policy until another engine applies its
    /// own
    #[arg(long, requires = "keep_pods")]
    now: bool,
    /// Also remove the data of the embedded datastore: pools, policies, everything in it
    #[arg(long)]
    purge: bool,
}

/// Makes this host a node. Can be repeated: what exists already is left alone.
pub fn up(args: UpArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let exe = std::env::current_exe()?;
    let node = &args.node;
    if args.check {
        return check(&args, out);
    }
    for dir in [&node.state_dir, &node.run_dir, &args.cni_bin_dir, &args.cni_conf_dir] {
        std::fs::create_dir_all(dir).map_err(|error| describe_path_error(dir, &error))?;
    }
    let mut manifest = UpManifest::load(&node.state_dir)?;
    // Check the CNI files before starting anything, to detect a network that cannot be taken over.
    let installation = CniInstallation::prepare(&args, &manifest)?;
    if let Some(warning) = installation.warning() {
        writeln!(out, "{warning}")?;
    }
    manifest.network = installation.network().to_owned();
    // Keep the service manager of an earlier `up`.
    if !UpManifest::exists(&node.state_dir)? {
        manifest.systemd = uses_systemd(&args);
    }

    let mut store = build_datastore_daemon(node, &exe);
    store.by_systemd = manifest.systemd;
    let config = StoreConfig::load(&node.config)?;
    let own = format!("unix://{}", build_datastore_socket_path(node).display());
    let configured = config != StoreConfig::default() && config.etcd_endpoints != own;
    if manifest.embedded || !configured {
        manifest.embedded = true;
        manifest.save(&node.state_dir)?;
        if let Some(word) = start(&store, args.restart)? {
            writeln!(out, "{word} the embedded datastore at {own}")?;
        }
        let socket = build_datastore_socket_path(node);
        wait(&store, || UnixStream::connect(&socket).is_ok())?;
    }
    let mut daemon = build_node_daemon(node, &exe);
    daemon.by_systemd = manifest.systemd;
    if manifest.systemd {
        let file = node.state_dir.join("environment");
        systemd::keep_environment(&file).map_err(|error| describe_path_error(&file, &error))?;
        manifest.files.insert(file.clone());
        daemon.environment_file = Some(file);
    }
    manifest.save(&node.state_dir)?;
    if manifest.embedded {
        daemon
            .environment
            .push(("TORTIE_DATASTORE_SOCKET", build_datastore_socket_path(node).into_os_string()));
    }
    if let Some(word) = start(&daemon, args.restart)? {
        writeln!(out, "{word} the node")?;
    }
    wait(&daemon, || call_cni(node, "STATUS", &[], &json!({})).is_ok_and(|answer| answer.starts_with("0")))?;

    // Install the plugins last, since the runtime uses them from now on.
    installation.install(&mut manifest, &node.state_dir)?;
    let network = installation.network();
    let conflist = installation.conflist.display();
    writeln!(out, "this host is a node; containers join network {network} by {conflist}")?;
    Ok(())
}

/// Detects problems that would make `up` fail, before anything on this host is stopped or changed.
fn check(args: &UpArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let node = &args.node;
    let manifest = UpManifest::load(&node.state_dir)?;
    for dir in [&node.state_dir, &node.run_dir, &args.cni_bin_dir, &args.cni_conf_dir] {
        can_write(dir)?;
    }
    let installation = CniInstallation::prepare(args, &manifest)?;
    if let Some(warning) = installation.warning() {
        writeln!(out, "{warning}")?;
    }
    let network = installation.network();
    let conflist = installation.conflist.display();
    if installation.is_takeover {
        writeln!(out, "ok: the network {network} of {conflist} is carried over with its settings")?;
    } else {
        writeln!(out, "ok: the network {network} gets {conflist}")?;
    }
    let config = StoreConfig::load(&node.config)?;
    if config == StoreConfig::default() {
        writeln!(out, "ok: no datastore is configured, the embedded one is used")?;
    } else {
        let nodes = block_on(async {
            let resources = ResourceClient::new(StoreClient::connect(&config).await?);
            resources.list(Kind::Node, None).await
        })??;
        writeln!(out, "ok: the datastore answers and has {} nodes", nodes.items.len())?;
    }
    Ok(writeln!(out, "this host can become a node; nothing was changed")?)
}

/// Fails if the directory cannot be created, or a file cannot be created in it.
fn can_write(dir: &Path) -> Result<(), CommandError> {
    let existing = dir.ancestors().find(|dir| dir.exists()).unwrap_or(dir);
    if !existing.is_dir() {
        return Err(CommandError::message(format!("{} is not a directory", existing.display())));
    }
    let probe = existing.join(format!(".tortie-check-{}", std::process::id()));
    std::fs::write(&probe, "")
        .and_then(|()| std::fs::remove_file(&probe))
        .map_err(|error| describe_path_error(existing, &error))
}

/// Starts a daemon unless it is running, or restarts it. Returns the word for the message, if anything was done.
fn start(daemon: &HostDaemon, restart: bool) -> Result<Option<&'static str>, CommandError> {
    let word = if restart && daemon.is_running() { "restarted" } else { "started" };
    if word == "restarted" {
        daemon.stop()?;
    }
    Ok(daemon.start()?.then_some(word))
}

fn uses_systemd(args: &UpArgs) -> bool {
    match args.service_manager {
        ServiceManager::Systemd => true,
        ServiceManager::Own => false,
        // A node with other directories may be one of several on this machine.
        ServiceManager::Auto => args.node.is_the_hosts() && systemd::is_here(),
    }
}

/// Reverts `up`. Continues after failures and reports all of them.
pub fn down(args: &DownArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let node = &args.node;
    let data = node.state_dir.join("datastore");
    if !UpManifest::exists(&node.state_dir)? {
        return purge_without_manifest(args, &data, out);
    }
    let manifest = UpManifest::load(&node.state_dir)?;
    if args.keep_pods {
        let mut handover = PolicyHandover::ToFelix(Duration::from_secs(args.felix_timeout));
        if args.now {
            handover = PolicyHandover::Now;
        }
        return give_back(node, &manifest, handover, out);
    }
    let mut attached = read_attachments(&node.journal_dir())
        .map_err(|error| describe_path_error(&node.journal_dir(), &error))?;
    let interfaces = workloads::list_interfaces()?;
    if !args.force {
        refuse_unknown_workloads(node, &manifest, &interfaces, &attached)?;
    }
    attached.retain(|attachment| attachment.is_running(&interfaces));
    if !attached.is_empty() && !args.force {
        let list: Vec<String> = attached.iter().map(|attachment| format!("  {attachment}")).collect();
        return Err(CommandError::message(format!(
            "containers still use the network of this host:\n{}\nstop them first, or remove their network with \
             `tortie down --force`; nothing was changed",
            list.join("\n")
        )));
    }
    let exe = std::env::current_exe()?;
    let mut failures = Vec::new();
    for file in &manifest.files {
        remove(file, &mut failures);
    }
    let cni_files = CniFiles::load(&node.state_dir).and_then(CniFiles::remove).unwrap_or_else(|reason| {
        failures.push(reason.to_string());
        Vec::new()
    });
    let left = leave(node, &manifest, &attached);
    stop(build_node_daemon(node, &exe), &manifest, &mut failures);
    // The daemon may have reclaimed tunnel addresses while it was still running, so delete the node again.
    let gone = left.and_then(|member| member.map_or(Ok(()), |member| member.delete()));
    if let Err(error) = gone {
        failures.push(format!("leaving the cluster: {error}"));
    }
    stop(build_datastore_daemon(node, &exe), &manifest, &mut failures);
    if let Err(error) = remove_policy() {
        failures.push(error.to_string());
    }
    if !failures.is_empty() {
        return Err(CommandError::message(failures.join("\n")));
    }
    remove_state(node, &mut failures);
    report_removals(&attached, &manifest, &cni_files, out)?;
    if args.purge {
        remove_dir(&data, &mut failures);
        writeln!(out, "removed: the datastore in {}", data.display())?;
    } else if data.exists() {
        writeln!(
            out,
            "kept: the datastore in {}; `tortie up` uses it again, `tortie down --purge` removes it",
            data.display()
        )?;
    }
    UpManifest::remove(&node.state_dir)?;
    for dir in [&node.run_dir, &node.state_dir] {
        // Fails if the directory contains other files.
        let _ = std::fs::remove_dir(dir);
    }
    if !failures.is_empty() {
        return Err(CommandError::message(failures.join("\n")));
    }
    Ok(writeln!(out, "this host is no longer a node")?)
}

/// Handles `down` on a host where `up` has not run, or has been reverted already.
fn purge_without_manifest(args: &DownArgs, data: &Path, out: &mut dyn Write) -> Result<(), CommandError> {
    let state_dir = &args.node.state_dir;
    if args.purge && data.exists() {
        return purge(data, state_dir, out);
    }
    writeln!(out, "nothing to take down: `tortie up` has left no record in {}", state_dir.display())?;
    if data.exists() {
        writeln!(out, "kept: the datastore in {}; `tortie down --purge` removes it", data.display())?;
    }
    Ok(())
}

/// Fails if workloads run on this host that its node has not attached.
fn refuse_unknown_workloads(
    node: &NodeArgs,
    manifest: &UpManifest,
    interfaces: &BTreeMap<String, bool>,
    attached: &[AttachmentRecord],
) -> Result<(), CommandError> {
    let member = find_member(node, manifest)?;
    let asked = member.as_ref().map(|member| (&member.config, member.name.as_str()));
    let unknown = workloads::find_unknown(node, interfaces, attached, asked).map_err(|error| {
        CommandError::message(format!(
            "cannot determine whether workloads still run on this host: {error}\n`tortie down --force` continues \
             without this check; nothing was changed"
        ))
    })?;
    if unknown.is_empty() {
        return Ok(());
    }
    let list: Vec<String> = unknown.iter().map(|line| format!("  {line}")).collect();
    Err(CommandError::message(format!(
        "workloads that this node has not attached run on this host:\n{}\nstop them first, return the host to the program \
         that attached them with `tortie down --keep-pods`, or remove their network with `tortie down --force`; nothing \
         was changed",
        list.join("\n")
    )))
}

/// Removes the files in which the daemons keep their state, except for the data of the datastore.
fn remove_state(node: &NodeArgs, failures: &mut Vec<String>) {
    for file in [
        node.calico_dir().join("nodename"),
        node.calico_dir().join("mtu"),
        node.known_objects_file(),
        node.http_proxies_file(),
        build_datastore_socket_path(node),
        node.run_dir.join("bgp"),
    ] {
        remove(&file, failures);
    }
    remove_dir(&node.journal_dir(), failures);
}

fn report_removals(
    attached: &[AttachmentRecord],
    manifest: &UpManifest,
    cni_files: &[RemovedFile],
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    for attachment in attached {
        writeln!(out, "removed: the network of {attachment}")?;
    }
    for file in &manifest.files {
        writeln!(out, "removed: {}", file.display())?;
    }
    for file in cni_files {
        writeln!(out, "{file}")?;
    }
    Ok(writeln!(out, "removed: the node, its routes, its policy and its addresses")?)
}

fn stop(mut daemon: HostDaemon, manifest: &UpManifest, failures: &mut Vec<String>) {
    daemon.by_systemd = manifest.systemd;
    if let Err(error) = daemon.stop() {
        failures.push(format!("{}: {error}", daemon.name));
    }
}

/// Stops the daemons and leaves pods, endpoints and the node to Calico.
fn give_back(
    node: &NodeArgs,
    manifest: &UpManifest,
    handover: PolicyHandover,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    // Wait before the daemons are stopped: stopped services do not start again after a reboot.
    if let PolicyHandover::ToFelix(limit) = handover {
        runtime.block_on(tortie_node::await_felix(limit)).map_err(CommandError::message)?;
    }
    let exe = std::env::current_exe()?;
    for mut daemon in [build_node_daemon(node, &exe), build_datastore_daemon(node, &exe)] {
        daemon.by_systemd = manifest.systemd;
        daemon.stop()?;
    }
    let removed = runtime
        .block_on(tortie_node::leave(node, LivePodHandling::Kept, handover))
        .map_err(CommandError::message)?;
    for line in removed {
        writeln!(out, "{line}")?;
    }
    let mut failures = Vec::new();
    for file in &manifest.files {
        remove(file, &mut failures);
        writeln!(out, "removed: {}", file.display())?;
    }
    remove(&build_datastore_socket_path(node), &mut failures);
    if !failures.is_empty() {
        return Err(CommandError::message(failures.join("\n")));
    }
    UpManifest::remove(&node.state_dir)?;
    for dir in [&node.run_dir, &node.state_dir] {
        // Fails if the directory contains other files.
        let _ = std::fs::remove_dir(dir);
    }
    writeln!(out, "kept: interfaces, addresses and routes of containers, and the node in the datastore")?;
    Ok(writeln!(out, "this host is free for Calico")?)
}

/// Removes the data that an earlier `down` kept.
fn purge(data: &Path, state_dir: &Path, out: &mut dyn Write) -> Result<(), CommandError> {
    std::fs::remove_dir_all(data).map_err(|error| describe_path_error(data, &error))?;
    let _ = std::fs::remove_dir(state_dir);
    Ok(writeln!(out, "removed: the datastore in {}", data.display())?)
}

/// Removes the policy table, since no daemon maintains it any more.
fn remove_policy() -> Result<(), CommandError> {
    let removal = async { tortie_dataplane::remove_policy(&tortie_dataplane::Netns::current()?).await };
    block_on(removal)?.map_err(CommandError::message)
}

/// Runs a future to completion on this thread.
fn block_on<F: Future>(future: F) -> std::io::Result<F::Output> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(future))
}

/// This host's node in the datastore.
struct ClusterMember {
    config: StoreConfig,
    name: String,
}

impl ClusterMember {
    /// Deletes the node with its blocks. If the node does not exist any more, deletes its remaining objects.
    fn delete(&self) -> Result<(), CommandError> {
        block_on(async {
            let resources = ResourceClient::new(StoreClient::connect(&self.config).await?);
            match resources.delete(Kind::Node, "", &self.name, None).await {
                Ok(_) | Err(StoreError::DoesNotExist { .. }) => Ok(()),
                Err(error) => Err(CommandError::Store(error)),
            }
        })?
    }
}

/// Returns this host's node in the datastore, as its daemon knows it; `None` if there is no daemon.
fn find_member(node: &NodeArgs, manifest: &UpManifest) -> Result<Option<ClusterMember>, CommandError> {
    if !node.socket().exists() {
        return Ok(None);
    }
    let file = node.calico_dir().join("nodename");
    let name = std::fs::read_to_string(&file).map_err(|error| describe_path_error(&file, &error))?;
    let config = if manifest.embedded {
        StoreConfig::at(format!("unix://{}", build_datastore_socket_path(node).display()))
    } else {
        StoreConfig::load(&node.config)?
    };
    Ok(Some(ClusterMember { config, name }))
}

/// Detaches the containers and deletes the node; `None` if there is no daemon to do it.
fn leave(
    node: &NodeArgs,
    manifest: &UpManifest,
    attached: &[AttachmentRecord],
) -> Result<Option<ClusterMember>, CommandError> {
    let Some(member) = find_member(node, manifest)? else { return Ok(None) };
    let attached_networks = attached.iter().map(|attachment| attachment.network.as_str());
    let networks: BTreeSet<&str> = attached_networks.chain([manifest.network.as_str()]).collect();
    for network in networks.into_iter().filter(|network| !network.is_empty()) {
        let extra = json!({"name": network, "cni.dev/valid-attachments": []});
        check_response(&call_cni(node, "GC", &[], &extra)?)?;
    }
    for attachment in attached.iter().filter(|attachment| attachment.network.is_empty()) {
        let about =
            [("CNI_CONTAINERID", attachment.id.container_id.as_str()), ("CNI_IFNAME", &attachment.id.ifname)];
        check_response(&call_cni(node, "DEL", &about, &json!({}))?)?;
    }
    member.delete()?;
    std::thread::sleep(ROUTE_REMOVAL_DELAY);
    Ok(Some(member))
}

fn check_response(response: &str) -> Result<(), CommandError> {
    if response.starts_with('0') {
        Ok(())
    } else {
        Err(CommandError::message(extract_error_message(response)))
    }
}

/// Extracts the message of a CNI error, without the status line and the JSON.
fn extract_error_message(response: &str) -> String {
    let text = response.split_once('\n').map_or(response, |(_, text)| text);
    let error: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    let parts = ["msg", "details"].map(|field| error[field].as_str().unwrap_or_default());
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    if parts.is_empty() { text.trim().to_owned() } else { parts.join(": ") }
}

/// Sends a request to the node's daemon like a CNI plugin.
fn call_cni(
    node: &NodeArgs,
    command: &str,
    variables: &[(&str, &str)],
    extra: &serde_json::Value,
) -> Result<String, CommandError> {
    let mut config = json!({"cniVersion": "1.1.0", "name": "up"});
    if let (Some(config), Some(extra)) = (config.as_object_mut(), extra.as_object()) {
        config.extend(extra.clone());
    }
    let mut environment = BTreeMap::from([("CNI_PATH", "/")]);
    environment.extend(variables.iter().copied());
    let request = json!({
        "plugin": CniPlugin::Calico.name(),
        "command": command,
        "env": environment,
        "config": config.to_string(),
    });
    let mut stream =
        UnixStream::connect(node.socket()).map_err(|error| describe_path_error(&node.socket(), &error))?;
    stream.set_read_timeout(Some(READY_TIMEOUT))?;
    stream.write_all(request.to_string().as_bytes())?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn build_datastore_socket_path(node: &NodeArgs) -> PathBuf {
    node.run_dir.join("datastore.sock")
}

fn build_datastore_daemon(node: &NodeArgs, exe: &Path) -> HostDaemon {
    let data = node.state_dir.join("datastore").into_os_string();
    let listen = format!("unix://{}", build_datastore_socket_path(node).display()).into();
    let words = ["datastore".into(), "--data-dir".into(), data, "--listen".into(), listen];
    HostDaemon::new("datastore", exe, &node.run_dir, words.to_vec())
}

fn build_node_daemon(node: &NodeArgs, exe: &Path) -> HostDaemon {
    let mut words = vec![
        "node".into(),
        "--state-dir".into(),
        node.state_dir.clone().into_os_string(),
        "--run-dir".into(),
        node.run_dir.clone().into_os_string(),
        "--calico-dir".into(),
        node.calico_dir().as_os_str().to_owned(),
    ];
    if node.config != Path::new(StoreConfig::DEFAULT_FILE) {
        words.extend(["--config".into(), node.config.clone().into_os_string()]);
    }
    HostDaemon::new("node", exe, &node.run_dir, words)
}

fn wait(daemon: &HostDaemon, ready: impl Fn() -> bool) -> Result<(), CommandError> {
    let mut is_ready = false;
    wait_until(READY_TIMEOUT, || {
        is_ready = ready();
        is_ready || !daemon.is_running()
    });
    if is_ready {
        return Ok(());
    }
    let what = if daemon.is_running() { "is not ready" } else { "ended" };
    let (log, last) = daemon.end_of_log(SHOWN_LOG_LINES);
    Err(CommandError::message(format!("{} {what}; the end of its log ({log}):\n{last}", daemon.name)))
}

/// Removes a file, if it exists.
fn remove(path: &Path, failures: &mut Vec<String>) {
    report_removal(path, std::fs::remove_file(path), failures);
}

/// Removes a directory with its contents, if it exists.
fn remove_dir(path: &Path, failures: &mut Vec<String>) {
    report_removal(path, std::fs::remove_dir_all(path), failures);
}

fn report_removal(path: &Path, removed: std::io::Result<()>, failures: &mut Vec<String>) {
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            failures.push(format!("{}: {error}", path.display()));
        }
        _ => {}
    }
}

fn describe_path_error(path: &Path, error: &std::io::Error) -> CommandError {
    CommandError::at(path, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_see_the_reason_and_not_the_json() {
        let answer = "1\n{\"cniVersion\":\"1.1.0\",\"code\":11,\"msg\":\"the store does not answer\",\"details\":\"timed out\"}";
        assert_eq!(extract_error_message(answer), "the store does not answer: timed out");
        assert_eq!(extract_error_message("1\nsomething else\n"), "something else");
    }
}
