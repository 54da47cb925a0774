//! `calicoctl node checksystem`: checks that the kernel has the features that a node needs.

use crate::failure::{CommandError, CommandResult};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The oldest kernel version that supports everything that policy needs.
const MIN_KERNEL_VERSION: (u32, u32) = (5, 13);

/// Module name, kernel configuration option, and whether a node requires it.
const KERNEL_MODULES: [(&str, &str, ModuleRequirement); 13] = [
    ("nf_tables", "CONFIG_NF_TABLES", ModuleRequirement::Always),
    ("nf_conntrack", "CONFIG_NF_CONNTRACK", ModuleRequirement::Always),
    ("nf_conntrack_netlink", "CONFIG_NF_CT_NETLINK", ModuleRequirement::Always),
    ("nft_ct", "CONFIG_NFT_CT", ModuleRequirement::Always),
    ("nft_fib_inet", "CONFIG_NFT_FIB_INET", ModuleRequirement::Always),
    ("nft_masq", "CONFIG_NFT_MASQ", ModuleRequirement::Always),
    ("nft_reject_inet", "CONFIG_NFT_REJECT_INET", ModuleRequirement::Always),
    ("nft_limit", "CONFIG_NFT_LIMIT", ModuleRequirement::Sometimes),
    ("nft_log", "CONFIG_NFT_LOG", ModuleRequirement::Sometimes),
    ("veth", "CONFIG_VETH", ModuleRequirement::Always),
    ("vxlan", "CONFIG_VXLAN", ModuleRequirement::Sometimes),
    ("ipip", "CONFIG_NET_IPIP", ModuleRequirement::Sometimes),
    ("wireguard", "CONFIG_WIREGUARD", ModuleRequirement::Sometimes),
];

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
    for (name, option, need) in KERNEL_MODULES {
        let verdict = match (known.has(name, option), need) {
            (true, _) => "OK",
            (false, ModuleRequirement::Sometimes) => "SKIP",
            (false, ModuleRequirement::Always) => "FAIL",
        };
        good &= verdict != "FAIL";
        print_verdict(out, name, verdict)?;
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
        Ok(ModuleSources { lists, config })
    }

    fn has(&self, name: &str, option: &str) -> bool {
        let listed = self.lists.iter().flat_map(|list| list.lines()).any(|line| {
            let first = line.split([':', ' ']).next().unwrap_or_default();
            let file = first.rsplit('/').next().unwrap_or_default();
            file.split(".ko").next().unwrap_or_default().replace('-', "_") == name
        });
        let set = [format!("{option}=y"), format!("{option}=m")];
        listed || self.config.lines().any(|line| set.iter().any(|set| line == set))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_found_in_every_source() {
        let known = |list: &str, config: &str| ModuleSources {
            lists: vec![list.to_owned()],
            config: config.to_owned(),
        };
        assert!(
            known("kernel/net/netfilter/nf_tables.ko.xz: kernel/x.ko", "")
                .has("nf_tables", "CONFIG_NF_TABLES")
        );
        assert!(known("kernel/drivers/net/nft-ct.ko:", "").has("nft_ct", "CONFIG_NFT_CT"));
        assert!(known("vxlan 155648 0 - Live 0x0", "").has("vxlan", "CONFIG_VXLAN"));
        assert!(known("", "CONFIG_VETH=m\n").has("veth", "CONFIG_VETH"));
        assert!(
            !known("kernel/nf_tables_more.ko:", "# CONFIG_NF_TABLES is not set")
                .has("nf_tables", "CONFIG_NF_TABLES")
        );
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
