//! `calicoctl node checksystem`: checks that the kernel has the features that a node needs.

use crate::failure::{CommandError, CommandResult};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The oldest kernel version that supports everything that policy needs.
const MIN_KERNEL_VERSION: (u32, u32) = (5, 13);

const KERNEL_MODULES: [KernelModule; 13] = [
    KernelModule::new("nf_tables", "CONFIG_NF_TABLES", "nf_tables_newtable", ModuleRequirement::Always),
    KernelModule::new("nf_conntrack", "CONFIG_NF_CONNTRACK", "nf_conntrack_in", ModuleRequirement::Always),
    KernelModule::new(
        "nf_conntrack_netlink",
        "CONFIG_NF_CT_NETLINK",
        "ctnetlink_get_conntrack",
        ModuleRequirement::Always,
    ),
    KernelModule::new("nft_ct", "CONFIG_NFT_CT", "nft_ct_get_eval", ModuleRequirement::Always),
    KernelModule::new("nft_fib_inet", "CONFIG_NFT_FIB_INET", "nft_fib_inet_eval", ModuleRequirement::Always),
    KernelModule::new("nft_masq", "CONFIG_NFT_MASQ", "nft_masq_dump", ModuleRequirement::Always),
    KernelModule::new(
        "nft_reject_inet",
        "CONFIG_NFT_REJECT_INET",
        "nft_reject_inet_eval",
        ModuleRequirement::Always,
    ),
    KernelModule::new("nft_limit", "CONFIG_NFT_LIMIT", "nft_limit_select_ops", ModuleRequirement::Sometimes),
    KernelModule::new("nft_log", "CONFIG_NFT_LOG", "nft_log_eval", ModuleRequirement::Sometimes),
    KernelModule::new("veth", "CONFIG_VETH", "veth_xmit", ModuleRequirement::Always),
    KernelModule::new("vxlan", "CONFIG_VXLAN", "vxlan_xmit", ModuleRequirement::Sometimes),
    KernelModule::new("ipip", "CONFIG_NET_IPIP", "ipip_tunnel_xmit", ModuleRequirement::Sometimes),
    KernelModule::new("wireguard", "CONFIG_WIREGUARD", "wg_xmit", ModuleRequirement::Sometimes),
];

/// A kernel module and the traces that it leaves.
struct KernelModule {
    name: &'static str,
    /// Option of the kernel configuration.
    option: &'static str,
    /// A function of the module. The symbol table of the kernel lists it also if the module is built in and the host
    /// has neither a list of modules nor the kernel configuration.
    function: &'static str,
    requirement: ModuleRequirement,
}

impl KernelModule {
    const fn new(
        name: &'static str,
        option: &'static str,
        function: &'static str,
        requirement: ModuleRequirement,
    ) -> KernelModule {
        KernelModule { name, option, function, requirement }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum ModuleRequirement {
    Always,
    /// Required by some settings only.
    Sometimes,
}

pub fn check(config: Option<&Path>, out: &mut dyn Write) -> CommandResult<()> {
    let release = read(Path::new("/proc/sys/kernel/osrelease"));
    let release = release.trim();
    writeln!(out, "Checking kernel version...")?;
    let mut good = is_new_enough(release);
    print_verdict(out, release, if good { "OK" } else { "FAIL" })?;
    writeln!(out, "Checking kernel modules...")?;
    let known = ModuleSources::load(release, config)?;
    for module in &KERNEL_MODULES {
        let verdict = match (known.has(module), module.requirement) {
            (true, _) => "OK",
            (false, ModuleRequirement::Sometimes) => "SKIP",
            (false, ModuleRequirement::Always) => "FAIL",
        };
        good &= verdict != "FAIL";
        print_verdict(out, module.name, verdict)?;
    }
    if !good {
        return Err(CommandError::message(
            "system doesn't meet one or more minimum systems requirements to run Calico",
        ));
    }
    Ok(writeln!(out, "System meets minimum system requirements to run Calico!")?)
}

fn print_verdict(out: &mut dyn Write, name: &str, verdict: &str) -> std::io::Result<()> {
    writeln!(out, "\t\t{name:<20}\t\t\t\t\t{verdict}")
}

fn is_new_enough(release: &str) -> bool {
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= MIN_KERNEL_VERSION
}

/// Returns the contents of a file, or an empty string if it cannot be read.
fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The sources of information about kernel modules.
struct ModuleSources {
    /// Lists of modules, by file or by name.
    lists: Vec<String>,
    config: String,
    /// The symbol table of the kernel: address, type and name in each line, and the module of a loaded one.
    symbols: String,
}

impl ModuleSources {
    fn load(release: &str, config: Option<&Path>) -> CommandResult<ModuleSources> {
        let modules = PathBuf::from("/lib/modules").join(release);
        let config = match config {
            Some(path) => std::fs::read_to_string(path).map_err(|error| CommandError::at(path, &error))?,
            None => read(&PathBuf::from(format!("/boot/config-{release}"))),
        };
        let loaded = read(Path::new("/proc/modules"));
        // Built-in modules with parameters have a directory there.
        let present = std::fs::read_dir("/sys/module").into_iter().flatten().flatten();
        let present = present.map(|entry| format!("{}\n", entry.file_name().to_string_lossy())).collect();
        let lists =
            vec![read(&modules.join("modules.dep")), read(&modules.join("modules.builtin")), loaded, present];
        Ok(ModuleSources { lists, config, symbols: read(Path::new("/proc/kallsyms")) })
    }

    fn has(&self, module: &KernelModule) -> bool {
        let listed = self.lists.iter().flat_map(|list| list.lines()).any(|line| {
            let first = line.split([':', ' ']).next().unwrap_or_default();
            let file = first.rsplit('/').next().unwrap_or_default();
            file.split(".ko").next().unwrap_or_default().replace('-', "_") == module.name
        });
        let set = [format!("{}=y", module.option), format!("{}=m", module.option)];
        listed
            || self.config.lines().any(|line| set.iter().any(|set| line == set))
            || self.has_symbol(module.function)
    }

    fn has_symbol(&self, function: &str) -> bool {
        self.symbols.lines().any(|line| line.split_ascii_whitespace().nth(2) == Some(function))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(name: &str) -> &'static KernelModule {
        KERNEL_MODULES.iter().find(|module| module.name == name).unwrap()
    }

    #[test]
    fn modules_are_found_in_every_source() {
        let known = |list: &str, config: &str| ModuleSources {
            lists: vec![list.to_owned()],
            config: config.to_owned(),
            symbols: String::new(),
        };
        assert!(known("kernel/net/netfilter/nf_tables.ko.xz: kernel/x.ko", "").has(module("nf_tables")));
        assert!(known("kernel/drivers/net/nft-ct.ko:", "").has(module("nft_ct")));
        assert!(known("vxlan 155648 0 - Live 0x0", "").has(module("vxlan")));
        assert!(known("", "CONFIG_VETH=m\n").has(module("veth")));
        assert!(
            !known("kernel/nf_tables_more.ko:", "# CONFIG_NF_TABLES is not set").has(module("nf_tables"))
        );
    }

    #[test]
    fn built_in_modules_are_found_by_their_symbols() {
        let known = ModuleSources {
            lists: Vec::new(),
            config: String::new(),
            symbols: "0000000000000000 t veth_xmit.cold\n0000000000000000 T nf_conntrack_in\n\
                      ffffffffc0a01000 t vxlan_xmit\t[vxlan]\n"
                .to_owned(),
        };
        assert!(known.has(module("nf_conntrack")) && known.has(module("vxlan")));
        assert!(!known.has(module("veth")) && !known.has(module("wireguard")));
    }

    #[test]
    fn this_kernel_has_every_required_module() {
        let release = read(Path::new("/proc/sys/kernel/osrelease"));
        let mut known = ModuleSources::load(release.trim(), None).unwrap();
        // Without the lists and the configuration, as in a container or on a kernel without modules.
        known.lists.clear();
        known.config.clear();
        for module in KERNEL_MODULES.iter().filter(|module| module.requirement == ModuleRequirement::Always) {
            assert!(known.has(module), "{}", module.name);
        }
    }

    #[test]
    fn old_kernels_are_rejected() {
        for (release, expected) in
            [("5.13.0", true), ("6.1.0-13-amd64", true), ("5.4.0-1", false), ("4.19", false), ("", false)]
        {
            assert_eq!(is_new_enough(release), expected, "{release}");
        }
    }
}
