//! Pools, reservations and the resources of IP address management.

use super::{read, table};
use serde_json::{Value, json};
use tortie_model::{Kind, Resource};

#[test]
fn pools() {
    table(
        Kind::IPPool,
        "pool",
        json!({"cidr": "10.65.0.0/16"}),
        &[
            (json!({"cidr": ""}), &["Spec.CIDR"]),
            (json!({"cidr": "10.65.0.0"}), &["Spec.CIDR"]),
            (json!({"cidr": "10.65.0.1/16"}), &["Spec.CIDR"]),
            (json!({"cidr": "nonsense"}), &["Spec.CIDR"]),
            (json!({"cidr": "169.254.7.0/24"}), &["Spec.CIDR"]),
            (json!({"cidr": "169.0.0.0/8"}), &["Spec.CIDR"]),
            (json!({"cidr": "fe80::/64"}), &["Spec.CIDR"]),
            (json!({"cidr": "169.253.0.0/16"}), &[]),
            (json!({"cidr": "fd00:65::/48"}), &[]),
            (json!({"cidr": "10.65.0.0/27"}), &["Spec.CIDR"]),
            (json!({"cidr": "10.65.0.0/27", "disabled": true}), &[]),
            (json!({"cidr": "10.65.0.0/26"}), &[]),
            (json!({"blockSize": 19}), &["Spec.BlockSize"]),
            (json!({"blockSize": 20}), &[]),
            (json!({"blockSize": 32}), &[]),
            (json!({"blockSize": 33}), &["Spec.BlockSize"]),
            (json!({"cidr": "fd00:65::/48", "blockSize": 26}), &["Spec.BlockSize", "Spec.CIDR"]),
            (json!({"cidr": "10.65.0.0/33", "blockSize": 99}), &["Spec.CIDR", "Spec.BlockSize"]),
            (json!({"cidr": "fd00:65::/48", "blockSize": 128}), &[]),
            (json!({"ipipMode": "Sometimes"}), &["Spec.IPIPMode"]),
            (json!({"vxlanMode": "always"}), &["Spec.VXLANMode"]),
            (json!({"ipipMode": "CrossSubnet"}), &[]),
            (json!({"ipipMode": "Always", "vxlanMode": "Always"}), &["Spec.IPIPMode"]),
            (json!({"cidr": "fd00:65::/48", "ipipMode": "Always"}), &["Spec.IPIPMode"]),
            (json!({"cidr": "fd00:65::/48", "vxlanMode": "Always"}), &[]),
            (json!({"nodeSelector": "rack == "}), &["Spec.NodeSelector"]),
            (json!({"nodeSelector": "global()"}), &["Spec.NodeSelector"]),
            (json!({"nodeSelector": "rack == '1'"}), &[]),
            (json!({"namespaceSelector": "team == 'a'"}), &["Spec.NamespaceSelector"]),
            (json!({"namespaceSelector": "team == 'a'", "allowedUses": ["Workload"]}), &[]),
            (
                json!({"namespaceSelector": "global()", "allowedUses": ["Workload"]}),
                &["Spec.NamespaceSelector"],
            ),
            (json!({"allowedUses": ["Workload", "Workload"]}), &["Spec.AllowedUses[1]"]),
            (json!({"allowedUses": ["Sleep"]}), &["Spec.AllowedUses[0]"]),
            (json!({"allowedUses": ["LoadBalancer"]}), &[]),
            (json!({"allowedUses": ["LoadBalancer", "Workload"]}), &["Spec.AllowedUses"]),
            (json!({"allowedUses": ["LoadBalancer"], "vxlanMode": "Always"}), &["Spec.VXLANMode"]),
            (json!({"allowedUses": ["LoadBalancer"], "disableBGPExport": true}), &["Spec.DisableBGPExport"]),
            (json!({"allowedUses": ["LoadBalancer"], "nodeSelector": "has(x)"}), &["Spec.NodeSelector"]),
            (json!({"assignmentMode": "Manual"}), &[]),
            (json!({"assignmentMode": "manual"}), &["Spec.AssignmentMode"]),
            (
                json!({"cidr": "x", "ipipMode": "y", "assignmentMode": "z"}),
                &["Spec.CIDR", "Spec.IPIPMode", "Spec.AssignmentMode"],
            ),
        ],
    );
}

#[test]
fn pools_keep_their_network_block_size_and_use() {
    let pool = |spec: Value| match read(Kind::IPPool, "pool", &spec) {
        Resource::IPPool(pool) => pool,
        other => panic!("{other:?}"),
    };
    let old = pool(json!({"cidr": "10.65.0.0/16"}));
    let balancer = pool(json!({"cidr": "10.65.0.0/16", "allowedUses": ["LoadBalancer"]}));
    for (old, new, expected) in [
        (&old, json!({"cidr": "10.65.0.0/16", "natOutgoing": true, "allowedUses": ["Workload"]}), None),
        (&old, json!({"cidr": "10.66.0.0/16"}), Some("Spec.CIDR")),
        (&old, json!({"cidr": "10.65.0.0/17"}), Some("Spec.CIDR")),
        (&old, json!({"cidr": "10.65.0.0/16", "blockSize": 27}), Some("Spec.BlockSize")),
        (&old, json!({"cidr": "10.65.0.0/16", "allowedUses": ["LoadBalancer"]}), None),
        (&balancer, json!({"cidr": "10.65.0.0/16", "allowedUses": ["LoadBalancer"], "disabled": true}), None),
        (&balancer, json!({"cidr": "10.65.0.0/16"}), Some("Spec.AllowedUses")),
    ] {
        let result = old.check_update(&pool(new.clone()));
        let path = result.err().map(|error| error.errors[0].name.clone());
        assert_eq!(path.as_deref(), expected, "{new}");
    }
    let mut spelled = old.clone();
    spelled.spec.cidr = "010.65.0.0/16".to_owned();
    assert!(spelled.check_update(&old).is_err(), "an unreadable network is not the same network");
    let mut long = pool(json!({"cidr": "fd00:65::/48"}));
    let canonical = long.clone();
    long.spec.cidr = "fd00:0065:0::/48".to_owned();
    assert!(long.check_update(&canonical).is_ok());
}

#[test]
fn reservations() {
    table(
        Kind::IPReservation,
        "r",
        json!({"reservedCIDRs": ["10.65.0.0/28", "fd00::1/128", "10.65.1.1"]}),
        &[
            (json!({"reservedCIDRs": ["10.65.0.0/28", "x"]}), &["Spec.ReservedCIDRs[1]"]),
            (json!({"reservedCIDRs": ["10.65.0.0/28", "10.65.0.0/28"]}), &["Spec.ReservedCIDRs[1]"]),
        ],
    );
}

#[test]
fn address_management() {
    table(
        Kind::IPAMConfiguration,
        "default",
        json!({"strictAffinity": true}),
        &[
            (json!({"maxBlocksPerHost": 1000000, "ipCooldownSeconds": 1200}), &[]),
            (json!({"maxBlocksPerHost": 1000001}), &["Spec.MaxBlocksPerHost"]),
            (json!({"maxBlocksPerHost": -1}), &["Spec.MaxBlocksPerHost"]),
            (json!({"ipCooldownSeconds": 1201}), &["Spec.IPCooldownSeconds"]),
            (json!({"kubeVirtVMAddressPersistence": "Disabled"}), &[]),
            (json!({"kubeVirtVMAddressPersistence": "No"}), &["Spec.KubeVirtVMAddressPersistence"]),
        ],
    );
    table(
        Kind::BlockAffinity,
        "a",
        json!({"state": "confirmed", "node": "n1", "type": "host", "cidr": "10.65.3.0/26"}),
        &[
            (json!({"state": ""}), &[]),
            (json!({"state": "perhaps"}), &["Spec.State"]),
            (json!({"node": ""}), &["Spec.Node"]),
            (json!({"type": "guest"}), &["Spec.Type"]),
            (json!({"cidr": "10.65.3.1/26"}), &["Spec.CIDR"]),
            (json!({"deleted": false}), &[]),
            (json!({"deleted": true}), &["Spec.Deleted"]),
        ],
    );
    table(
        Kind::IPAMBlock,
        "b",
        json!({"cidr": "10.65.3.0/26", "affinity": "host:n1"}),
        &[
            (json!({"affinity": null}), &[]),
            (json!({"affinity": "virtual:load-balancer"}), &[]),
            (json!({"affinity": "n1"}), &["Spec.Affinity"]),
            (json!({"affinity": "host:"}), &["Spec.Affinity"]),
            (json!({"cidr": "x"}), &["Spec.CIDR"]),
        ],
    );
    table(
        Kind::IPAMHandle,
        "h",
        json!({"handleID": "H", "block": {"10.65.3.0/26": 1}}),
        &[(json!({"handleID": ""}), &["Spec.HandleID"]), (json!({"block": {"x": 1}}), &["Spec.Block[x]"])],
    );
}
