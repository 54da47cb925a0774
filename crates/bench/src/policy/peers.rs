//! Loads the same rules with nft, iptables and ipset, each in its own namespace.

use super::cluster::{
    self, LocalPod, ROLE_COUNT, address, group_of_endpoint, group_of_policy, policy_name, port_of_policy,
};
use super::inside;
use crate::namespace::{BenchResult, NamespaceGroup, check};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const IPSET_COMMAND: &[&str] = &["ipset", "restore"];

/// Commands that load iptables chains: on nf_tables, which is Debian's default, or the legacy implementation.
pub const IPTABLES_NFT_COMMAND: &[&str] = &["iptables-nft-restore", "--noflush"];
pub const IPTABLES_LEGACY_COMMAND: &[&str] = &["iptables-legacy-restore", "--noflush"];
const NFT_COMMAND: &[&str] = &["nft", "-f", "-"];

/// Size of a ruleset: the number of policies and endpoints, and the local pods.
#[derive(Clone, Copy)]
pub struct RulesetSize<'a> {
    pub locals: &'a [LocalPod],
    pub endpoints: usize,
    pub policies: usize,
}

/// Runs a tool with this input in the namespace of the calling thread and returns the time from its start to its exit.
pub fn run(command: &[&str], input: &str) -> BenchResult<Duration> {
    check()?;
    let (program, arguments) = command.split_first().ok_or("no command")?;
    let start = Instant::now();
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{program}: {error}; make setup"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // Ignore write errors: the exit status and standard error show what failed.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output()?;
    let took = start.elapsed();
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{program}: {}", said.chars().take(400).collect::<String>()).into());
    }
    Ok(took)
}

/// Returns Tortie's table as `nft list` prints it.
pub fn dump(netns: &Path) -> BenchResult<String> {
    inside(netns, || {
        let output = Command::new("nft").args(["list", "table", "inet", "tortie"]).output()?;
        if !output.status.success() {
            return Err(format!("nft: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        Ok(String::from_utf8(output.stdout)?)
    })
}

/// A copy of Tortie's table, modified with `nft -f`.
pub struct NftReference {
    pub host: NamespaceGroup,
    /// Time it took to load the table.
    pub took: Duration,
    table: String,
}

impl NftReference {
    pub fn load(table: String) -> BenchResult<NftReference> {
        let host = NamespaceGroup::host()?;
        let took = inside(&host.path(0), || run(NFT_COMMAND, &table))?;
        Ok(NftReference { host, took, table })
    }

    /// Returns the rules of a policy's chain.
    fn rules(&self, policy: usize) -> BenchResult<Vec<&str>> {
        let head = format!("chain {} {{", chain(policy));
        let mut lines = self.table.lines().map(str::trim).skip_while(|line| *line != head);
        lines.next().ok_or_else(|| format!("our table has no {head}"))?;
        Ok(lines.take_while(|line| *line != "}").collect())
    }

    /// Returns the name of the set of addresses that a policy allows.
    fn set(&self, policy: usize) -> BenchResult<&str> {
        let mut words = self.rules(policy)?.into_iter().flat_map(str::split_whitespace);
        let set = words.find(|word| word.starts_with('@') && word.ends_with("-4"));
        Ok(set.ok_or("a policy without a set")?.trim_start_matches('@'))
    }

    /// Returns the number of addresses that a policy allows.
    pub fn members(&self, policy: usize) -> BenchResult<usize> {
        let head = format!("set {} {{", self.set(policy)?);
        let (_, set) = self.table.split_once(&head).ok_or("our table lacks a set")?;
        let (_, elements) = set.split_once("elements = {").ok_or("a set without elements")?;
        let (elements, _) = elements.split_once('}').ok_or("a set without an end")?;
        Ok(elements.split(',').count())
    }

    pub fn element(
        &self,
        policy: usize,
        endpoint: usize,
        present: bool,
    ) -> BenchResult<(&'static [&'static str], String)> {
        let (verb, set) = (if present { "add" } else { "delete" }, self.set(policy)?);
        Ok((NFT_COMMAND, format!("{verb} element inet tortie {set} {{ {} }}\n", address(endpoint))))
    }

    pub fn port(&self, policy: usize, port: u16) -> BenchResult<(&'static [&'static str], String)> {
        let (chain, now) = (chain(policy), format!("dport {}", port_of_policy(policy)));
        let mut text = format!("flush chain inet tortie {chain}\n");
        for rule in self.rules(policy)? {
            let rule = rule.replace(&now, &format!("dport {port}"));
            writeln!(text, "add rule inet tortie {chain} {rule}")?;
        }
        Ok((NFT_COMMAND, text))
    }
}

fn chain(policy: usize) -> String {
    format!("in-gnp/{}", policy_name(policy))
}

/// The same rules in iptables chains and ipset sets, structured as in Calico: a chain for each pod, selected by its
/// interface, that jumps to a chain for each policy.
pub struct IptablesReference {
    pub host: NamespaceGroup,
    pub took: Duration,
    restore: &'static [&'static str],
}

impl IptablesReference {
    pub fn load(restore: &'static [&'static str], load: RulesetSize<'_>) -> BenchResult<IptablesReference> {
        let host = NamespaceGroup::host()?;
        let (sets, chains) = (sets(load), chains(load));
        let took = inside(&host.path(0), || Ok(run(IPSET_COMMAND, &sets)? + run(restore, &chains)?))?;
        Ok(IptablesReference { host, took, restore })
    }

    pub fn element(
        &self,
        policy: usize,
        endpoint: usize,
        present: bool,
    ) -> (&'static [&'static str], String) {
        let verb = if present { "add" } else { "del" };
        (IPSET_COMMAND, format!("{verb} g{} {}\n", group_of_policy(policy), address(endpoint)))
    }

    pub fn port(&self, policy: usize, port: u16) -> (&'static [&'static str], String) {
        let name = policy_name(policy);
        let rule = rule(policy, &format!("g{}", group_of_policy(policy)), port);
        (self.restore, format!("*filter\n:{name} - [0:0]\n{rule}COMMIT\n"))
    }
}

fn sets(load: RulesetSize<'_>) -> String {
    let mut text = String::new();
    for group in 0..=ROLE_COUNT {
        let _ = writeln!(text, "create g{group} hash:ip maxelem 1048576");
    }
    for endpoint in 0..load.endpoints {
        let (address, group) = (address(endpoint), group_of_endpoint(endpoint));
        let _ = writeln!(text, "add g0 {address}\nadd g{group} {address}");
    }
    text
}

/// Renders the single rule of a policy.
pub fn rule(policy: usize, set: &str, port: u16) -> String {
    let name = policy_name(policy);
    format!(
        "-A {name} -p tcp -m set --match-set {set} src -m tcp --dport {port} -m comment --comment \"gnp/{name} 0\" -j ACCEPT\n"
    )
}

fn chains(load: RulesetSize<'_>) -> String {
    let policies: Vec<(usize, String)> = (0..load.policies)
        .map(|policy| {
            (policy, rule(policy, &format!("g{}", group_of_policy(policy)), port_of_policy(policy)))
        })
        .collect();
    table(load.locals, &policies, |pod, policy| policy % cluster::LOCAL_PODS == pod)
}

/// Renders the chains of pods and policies. `selects` returns whether a policy applies to a pod, by their numbers.
pub fn table(
    locals: &[LocalPod],
    policies: &[(usize, String)],
    selects: impl Fn(usize, usize) -> bool,
) -> String {
    let (mut heads, mut rules) =
        (String::from("*filter\n:to-workload - [0:0]\n:from-workload - [0:0]\n"), String::new());
    rules.push_str(
        "-A FORWARD -i cali+ -j from-workload\n-A FORWARD -o cali+ -j to-workload\n-A FORWARD -j ACCEPT\n",
    );
    for (pod, LocalPod { interface, .. }) in locals.iter().enumerate() {
        let _ = writeln!(heads, ":to-{interface} - [0:0]\n:from-{interface} - [0:0]");
        let _ = writeln!(rules, "-A to-workload -o {interface} -g to-{interface}");
        let _ = writeln!(rules, "-A from-workload -i {interface} -g from-{interface}");
        for way in ["to", "from"] {
            let _ =
                writeln!(rules, "-A {way}-{interface} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT");
            let _ = writeln!(rules, "-A {way}-{interface} -m conntrack --ctstate INVALID -j DROP");
        }
        let mut guarded = false;
        for (policy, _) in policies.iter().filter(|(policy, _)| selects(pod, *policy)) {
            guarded = true;
            let _ = writeln!(rules, "-A to-{interface} -j {}", policy_name(*policy));
        }
        if guarded {
            let _ = writeln!(rules, "-A to-{interface} -j DROP");
        }
    }
    let _ = writeln!(rules, "-A to-workload -j DROP\n-A from-workload -j DROP");
    for (policy, rule) in policies {
        let _ = writeln!(heads, ":{} - [0:0]", policy_name(*policy));
        rules.push_str(rule);
    }
    format!("{heads}{rules}COMMIT\n")
}
