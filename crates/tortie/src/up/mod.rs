//! `tortie up` makes this host a node in one command, `tortie down` undoes it.
//!
//! What is made is written down first, in `up.json` of the state directory, so that `down` finds it after a crash too.

mod attachments;
mod manifest;
mod plugins;
mod process;
mod supervise;
mod systemd;

pub use supervise::{SuperviseArgs, supervise};

use clap::{Args, ValueEnum};
use manifest::Manifest;
use process::Daemon;
use serde_json::json;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tortie_cni::Plugin;
use tortie_ctl::Failure;
use tortie_model::Kind;
use tortie_node::NodeArgs;
use tortie_store::{Client, Config, Error, Resources};

/// How long a daemon may take to be ready; generous, since machines are busy.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);
/// What the node needs to take its routes out of the kernel once its blocks are gone.
const SETTLE: Duration = Duration::from_secs(1);
/// How much of a daemon's log is shown when it does not come up.
const LOG_LINES: usize = 10;

#[derive(Args, Debug)]
pub struct UpArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// Where the runtime looks for CNI plugins
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    cni_bin_dir: PathBuf,
    /// Where the runtime looks for network configurations
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d")]
    cni_conf_dir: PathBuf,
    /// Name of the network that containers join
    #[arg(long, value_name = "NAME", default_value = "tortie")]
    network: String,
    /// Give containers IPv6 addresses too
    #[arg(long)]
    ipv6: bool,
    /// Restart the daemons, for example with a new binary; containers keep their network
    #[arg(long)]
    restart: bool,
    /// What keeps the daemons running: systemd, or a small supervisor of our own
    #[arg(long, value_name = "MANAGER", value_enum, default_value = "auto")]
    service_manager: ServiceManager,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ServiceManager {
    /// systemd, if it runs this machine and the directories are the usual ones
    Auto,
    /// Services of systemd, which also start after a reboot
    Systemd,
    /// A supervisor of our own; after a reboot run `tortie up` again
    Own,
}

#[derive(Args, Debug)]
pub struct DownArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// Take the network away from containers that still run
    #[arg(long)]
    force: bool,
    /// Remove the data of the embedded datastore too: pools, policies, everything in it
    #[arg(long)]
    purge: bool,
}

/// May be repeated: what is there already is left as it is.
pub fn up(args: UpArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let exe = std::env::current_exe()?;
    let node = &args.node;
    for dir in [&node.state_dir, &node.run_dir, &args.cni_bin_dir, &args.cni_conf_dir] {
        std::fs::create_dir_all(dir).map_err(|error| at(dir, &error))?;
    }
    let mut manifest = Manifest::load(&node.state_dir).map_err(|error| at(&node.state_dir, &error))?;
    plugins::are_ours(&args.cni_bin_dir, &manifest)?;
    manifest.network = args.network.clone();
    // What was begun by one is not gone on with by the other.
    if !Manifest::exists(&node.state_dir) {
        manifest.systemd = by_systemd(&args);
    }

    let mut store = datastore(node, &exe);
    store.by_systemd = manifest.systemd;
    let config = Config::load(&node.config)?;
    let own = format!("unix://{}", datastore_socket(node).display());
    let configured = config != Config::default() && config.etcd_endpoints != own;
    if manifest.embedded || !configured {
        manifest.embedded = true;
        manifest.save(&node.state_dir)?;
        if let Some(word) = start(&store, args.restart)? {
            writeln!(out, "{word} the embedded datastore at {own}")?;
        }
        let socket = datastore_socket(node);
        wait(&store, || UnixStream::connect(&socket).is_ok())?;
    }
    let mut daemon = node_daemon(node, &exe);
    daemon.by_systemd = manifest.systemd;
    if manifest.systemd {
        let file = node.state_dir.join("environment");
        systemd::keep_environment(&file).map_err(|error| at(&file, &error))?;
        manifest.files.insert(file.clone());
        daemon.environment_file = Some(file);
    }
    manifest.save(&node.state_dir)?;
    if manifest.embedded {
        daemon.environment.push(("TORTIE_DATASTORE_SOCKET", datastore_socket(node).into_os_string()));
    }
    if let Some(word) = start(&daemon, args.restart)? {
        writeln!(out, "{word} the node")?;
    }
    wait(&daemon, || ask(node, "STATUS", &json!({})).is_ok_and(|answer| answer.starts_with("0")))?;

    plugins::install(&args.cni_bin_dir, &mut manifest, &node.state_dir)?;
    // Last: from now on the runtime uses it.
    let conflist = args.cni_conf_dir.join("10-calico.conflist");
    manifest.files.insert(conflist.clone());
    manifest.save(&node.state_dir)?;
    let text = serde_json::to_string_pretty(&configuration(&args)).unwrap_or_default();
    std::fs::write(&conflist, text + "\n").map_err(|error| at(&conflist, &error))?;
    writeln!(out, "this host is a node; containers join network {} by {}", args.network, conflist.display())?;
    Ok(())
}

/// Starts a daemon unless it runs, or again if it does; says what was done, if anything.
fn start(daemon: &Daemon, restart: bool) -> Result<Option<&'static str>, Failure> {
    let word = if restart && daemon.is_running() { "restarted" } else { "started" };
    if word == "restarted" {
        daemon.stop()?;
    }
    Ok(daemon.start()?.then_some(word))
}

fn by_systemd(args: &UpArgs) -> bool {
    match args.service_manager {
        ServiceManager::Systemd => true,
        ServiceManager::Own => false,
        // A node with directories of its own may be one of several on this machine.
        ServiceManager::Auto => args.node.is_the_hosts() && systemd::is_here(),
    }
}

/// Goes on past failures and names all of them.
pub fn down(args: &DownArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let node = &args.node;
    let data = node.state_dir.join("datastore");
    if !Manifest::exists(&node.state_dir) {
        if args.purge && data.exists() {
            return purge(&data, &node.state_dir, out);
        }
        writeln!(
            out,
            "nothing to take down: `tortie up` has left no record in {}",
            node.state_dir.display()
        )?;
        if data.exists() {
            writeln!(out, "kept: the datastore in {}; `tortie down --purge` removes it", data.display())?;
        }
        return Ok(());
    }
    let attached = attachments::live(&node.journal_dir()).map_err(|error| at(&node.journal_dir(), &error))?;
    if !attached.is_empty() && !args.force {
        let list: Vec<String> = attached.iter().map(|attachment| format!("  {attachment}")).collect();
        return Err(Failure::Message(format!(
            "containers still use the network of this host:\n{}\nstop them first, or take their network away with \
             `tortie down --force`; nothing was changed",
            list.join("\n")
        )));
    }
    let manifest = Manifest::load(&node.state_dir).map_err(|error| at(&node.state_dir, &error))?;
    let exe = std::env::current_exe()?;
    let mut failures = Vec::new();
    for file in &manifest.files {
        remove(file, &mut failures);
    }
    let stop = |mut daemon: Daemon, failures: &mut Vec<String>| {
        daemon.by_systemd = manifest.systemd;
        if let Err(error) = daemon.stop() {
            failures.push(format!("{}: {error}", daemon.name));
        }
    };
    let left = leave(node, &manifest);
    stop(node_daemon(node, &exe), &mut failures);
    // While it ran it may have claimed again what was taken from it: addresses of its tunnels.
    let gone = left.and_then(|member| member.map_or(Ok(()), |member| member.delete()));
    if let Err(error) = gone {
        failures.push(format!("leaving the cluster: {error}"));
    }
    stop(datastore(node, &exe), &mut failures);
    if let Err(error) = open_up() {
        failures.push(error.to_string());
    }
    if !failures.is_empty() {
        return Err(Failure::Message(failures.join("\n")));
    }
    for file in [
        node.calico_dir().join("nodename"),
        node.calico_dir().join("mtu"),
        datastore_socket(node),
        node.run_dir.join("bgp"),
    ] {
        remove(&file, &mut failures);
    }
    remove_dir(&node.journal_dir(), &mut failures);
    for attachment in &attached {
        writeln!(out, "removed: the network of {attachment}")?;
    }
    for file in &manifest.files {
        writeln!(out, "removed: {}", file.display())?;
    }
    writeln!(out, "removed: the node, its routes, its policy and its addresses")?;
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
    Manifest::remove(&node.state_dir).map_err(|error| at(&node.state_dir, &error))?;
    for dir in [&node.run_dir, &node.state_dir] {
        // Others may keep something there.
        let _ = std::fs::remove_dir(dir);
    }
    match failures.is_empty() {
        true => Ok(writeln!(out, "this host is no longer a node")?),
        false => Err(Failure::Message(failures.join("\n"))),
    }
}

/// What a former `down` kept.
fn purge(data: &Path, state_dir: &Path, out: &mut dyn Write) -> Result<(), Failure> {
    std::fs::remove_dir_all(data).map_err(|error| at(data, &error))?;
    let _ = std::fs::remove_dir(state_dir);
    Ok(writeln!(out, "removed: the datastore in {}", data.display())?)
}

/// Nobody looks after policy any more.
fn open_up() -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let removal = async { tortie_dataplane::remove_policy(&tortie_dataplane::Netns::current()?).await };
    runtime.block_on(removal).map_err(|error| Failure::Message(error.to_string()))
}

/// This host's node, in the datastore.
struct Member {
    config: Config,
    name: String,
}

impl Member {
    /// With its blocks, and with whatever else is left of it if it is gone.
    fn delete(&self) -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let resources = Resources::new(Client::connect(&self.config).await?);
            match resources.delete(Kind::Node, "", &self.name, None).await {
                Ok(_) | Err(Error::DoesNotExist { .. }) => Ok(()),
                Err(error) => Err(Failure::Store(error)),
            }
        })
    }
}

/// Removes what is attached through our network, and the node. None: there is no daemon that could.
fn leave(node: &NodeArgs, manifest: &Manifest) -> Result<Option<Member>, Failure> {
    if !node.socket().exists() {
        return Ok(None);
    }
    let extra = json!({"name": manifest.network, "cni.dev/valid-attachments": []});
    let answer = ask(node, "GC", &extra)?;
    if !answer.starts_with('0') {
        return Err(Failure::Message(reason(&answer)));
    }
    let name = std::fs::read_to_string(node.calico_dir().join("nodename"))?;
    let config = match manifest.embedded {
        true => Config::at(format!("unix://{}", datastore_socket(node).display())),
        false => Config::load(&node.config)?,
    };
    let member = Member { config, name };
    member.delete()?;
    std::thread::sleep(SETTLE);
    Ok(Some(member))
}

/// What an error of CNI says, for people: the line that says how it went and the braces are left out.
fn reason(answer: &str) -> String {
    let text = answer.split_once('\n').map_or(answer, |(_, text)| text);
    let error: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    let parts = ["msg", "details"].map(|field| error[field].as_str().unwrap_or_default());
    let said: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    if said.is_empty() { text.trim().to_owned() } else { said.join(": ") }
}

/// Asks the node's daemon as a plugin would.
fn ask(node: &NodeArgs, command: &str, extra: &serde_json::Value) -> Result<String, Failure> {
    let mut config = json!({"cniVersion": "1.1.0", "name": "up"});
    if let (Some(config), Some(extra)) = (config.as_object_mut(), extra.as_object()) {
        config.extend(extra.clone());
    }
    let request = json!({
        "plugin": Plugin::Calico.name(),
        "command": command,
        "env": {"CNI_PATH": "/"},
        "config": config.to_string(),
    });
    let mut stream = UnixStream::connect(node.socket()).map_err(|error| at(&node.socket(), &error))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(request.to_string().as_bytes())?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn configuration(args: &UpArgs) -> serde_json::Value {
    let ipv6 = if args.ipv6 { "true" } else { "false" };
    json!({
        "name": args.network,
        "cniVersion": "1.0.0",
        "plugins": [{
            "type": Plugin::Calico.name(),
            "tortie_socket": args.node.socket(),
            "ipam": {"type": Plugin::CalicoIpam.name(), "assign_ipv4": "true", "assign_ipv6": ipv6},
        }],
    })
}

fn datastore_socket(node: &NodeArgs) -> PathBuf {
    node.run_dir.join("datastore.sock")
}

fn datastore(node: &NodeArgs, exe: &Path) -> Daemon {
    let data = node.state_dir.join("datastore").into_os_string();
    let listen = format!("unix://{}", datastore_socket(node).display()).into();
    let words = ["datastore".into(), "--data-dir".into(), data, "--listen".into(), listen];
    Daemon::new("datastore", exe, &node.run_dir, words.to_vec())
}

fn node_daemon(node: &NodeArgs, exe: &Path) -> Daemon {
    let mut words = vec![
        "node".into(),
        "--state-dir".into(),
        node.state_dir.clone().into_os_string(),
        "--run-dir".into(),
        node.run_dir.clone().into_os_string(),
        "--calico-dir".into(),
        node.calico_dir().as_os_str().to_owned(),
    ];
    if node.config != Path::new(Config::DEFAULT_FILE) {
        words.extend(["--config".into(), node.config.clone().into_os_string()]);
    }
    Daemon::new("node", exe, &node.run_dir, words)
}

fn wait(daemon: &Daemon, ready: impl Fn() -> bool) -> Result<(), Failure> {
    let deadline = Instant::now() + PATIENCE;
    while !ready() {
        let what = match (daemon.is_running(), Instant::now() > deadline) {
            (false, _) => "ended",
            (true, true) => "is not ready",
            (true, false) => {
                std::thread::sleep(PAUSE);
                continue;
            }
        };
        let (log, last) = daemon.end_of_log(LOG_LINES);
        return Err(Failure::Message(format!("{} {what}; the end of its log ({log}):\n{last}", daemon.name)));
    }
    Ok(())
}

fn remove(path: &Path, failures: &mut Vec<String>) {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            failures.push(format!("{}: {error}", path.display()));
        }
        _ => {}
    }
}

fn remove_dir(path: &Path, failures: &mut Vec<String>) {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            failures.push(format!("{}: {error}", path.display()));
        }
        _ => {}
    }
}

fn at(path: &Path, error: &std::io::Error) -> Failure {
    Failure::at(path, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_see_the_reason_and_not_the_json() {
        let answer = "1\n{\"cniVersion\":\"1.1.0\",\"code\":11,\"msg\":\"the store does not answer\",\"details\":\"timed out\"}";
        assert_eq!(reason(answer), "the store does not answer: timed out");
        assert_eq!(reason("1\nsomething else\n"), "something else");
    }
}
