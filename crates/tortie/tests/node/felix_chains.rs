//! Chains as Felix writes them for one workload: all traffic is allowed except TCP and UDP to one port of the
//! workload.

/// The variants of Felix's dataplane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FelixMode {
    IptablesLegacy,
    IptablesNft,
    Nftables,
}

impl FelixMode {
    pub const ALL: [FelixMode; 3] = [FelixMode::IptablesLegacy, FelixMode::IptablesNft, FelixMode::Nftables];

    /// Returns a script that writes the chains of an interface; no hook jumps to them yet.
    pub fn chains(self, interface: &str, port: u16) -> String {
        let template = if self == FelixMode::Nftables { NFT_CHAINS } else { IPTABLES_CHAINS };
        self.for_each_family(&template.replace("IF", interface).replace("PORT", &port.to_string()))
    }

    /// Returns a script that adds the jumps from the kernel hooks.
    pub fn hooks(self) -> String {
        self.for_each_family(if self == FelixMode::Nftables { NFT_HOOKS } else { IPTABLES_HOOKS })
    }

    fn for_each_family(self, input: &str) -> String {
        let programs = match self {
            FelixMode::IptablesLegacy => ["iptables-legacy-restore -n", "ip6tables-legacy-restore -n"],
            FelixMode::IptablesNft => ["iptables-nft-restore -n", "ip6tables-nft-restore -n"],
            FelixMode::Nftables => ["nft -f -"; 2],
        };
        let script = |(program, family): (&str, &str)| {
            format!("{program} <<'END'\n{}END\n", input.replace("FAMILY", family))
        };
        "set -e\n".to_owned() + &programs.into_iter().zip(["ip", "ip6"]).map(script).collect::<String>()
    }
}

const IPTABLES_CHAINS: &str = "*filter
:cali-INPUT - [0:0]
:cali-FORWARD - [0:0]
:cali-wl-to-host - [0:0]
:cali-from-wl-dispatch - [0:0]
:cali-to-wl-dispatch - [0:0]
:cali-fw-IF - [0:0]
:cali-tw-IF - [0:0]
-A cali-INPUT -i cali+ -g cali-wl-to-host
-A cali-wl-to-host -j cali-from-wl-dispatch
-A cali-wl-to-host -j ACCEPT
-A cali-FORWARD -i cali+ -j cali-from-wl-dispatch
-A cali-FORWARD -o cali+ -j cali-to-wl-dispatch
-A cali-from-wl-dispatch -i IF -g cali-fw-IF
-A cali-from-wl-dispatch -j DROP
-A cali-to-wl-dispatch -o IF -g cali-tw-IF
-A cali-to-wl-dispatch -j DROP
-A cali-fw-IF -j MARK --set-mark 0x10000/0x10000
-A cali-tw-IF -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A cali-tw-IF -p tcp --dport PORT -j DROP
-A cali-tw-IF -p udp --dport PORT -j DROP
-A cali-tw-IF -j MARK --set-mark 0x10000/0x10000
COMMIT
";

const IPTABLES_HOOKS: &str = "*filter
-I INPUT -m comment --comment \"cali:Cz_u1IQiXIMmKD4c\" -j cali-INPUT
-I FORWARD -m comment --comment \"cali:wUHhoiAYhphO9Mso\" -j cali-FORWARD
-A FORWARD -m comment --comment \"cali:S93hcgKJrXEqnTfs\" -m mark --mark 0x10000/0x10000 -j ACCEPT
COMMIT
";

const NFT_CHAINS: &str = "table FAMILY calico {
    chain filter-cali-fw-IF { meta mark set mark or 0x10000; }
    chain filter-cali-tw-IF {
        ct state established,related accept
        tcp dport PORT drop
        udp dport PORT drop
        meta mark set mark or 0x10000
    }
    map filter-cali-from-wl-dispatch { type ifname : verdict; elements = { \"IF\" : goto filter-cali-fw-IF }; }
    map filter-cali-to-wl-dispatch { type ifname : verdict; elements = { \"IF\" : goto filter-cali-tw-IF }; }
    chain filter-cali-from-wl-dispatch { iifname vmap @filter-cali-from-wl-dispatch; drop; }
    chain filter-cali-to-wl-dispatch { oifname vmap @filter-cali-to-wl-dispatch; drop; }
    chain filter-cali-wl-to-host { jump filter-cali-from-wl-dispatch; accept; }
    chain filter-cali-INPUT { iifname \"cali*\" goto filter-cali-wl-to-host; }
    chain filter-cali-FORWARD {
        iifname \"cali*\" jump filter-cali-from-wl-dispatch
        oifname \"cali*\" jump filter-cali-to-wl-dispatch
    }
}
";

const NFT_HOOKS: &str = "table FAMILY calico {
    chain filter-INPUT { type filter hook input priority 0; policy accept; jump filter-cali-INPUT; }
    chain filter-FORWARD { type filter hook forward priority 0; policy accept; jump filter-cali-FORWARD; }
}
";
