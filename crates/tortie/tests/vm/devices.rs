//! Checks that the guest's kernel has the features that the tests need.

use tortie_testkit::{TestNamespace, guest_test};

guest_test!(
    crate::machine,
    fn the_kernel_has_tunnels_vrf_and_flow_tables() {
        let host = TestNamespace::new("host");
        host.ip("link add one type ipip local 192.0.2.1 remote 192.0.2.2");
        host.ip("link add two type wireguard");
        host.ip("link add three type vrf table 100");
        host.ip("link add four type vxlan id 4096 dstport 4789");
        for (link, kind) in [("one", "ipip"), ("two", "wireguard"), ("three", "vrf"), ("four", "vxlan")] {
            let link = &host.json(&format!("link show dev {link}"))[0];
            assert_eq!(link["linkinfo"]["info_kind"], kind, "{link}");
        }
        assert!(host.has_link("tunl0"), "the device that every namespace has where there is IPIP");
        host.ip("link add eth0 type dummy");
        host.nft("table inet t {\n flowtable f {\n hook ingress priority 0; devices = { eth0 };\n }\n }");
        assert!(host.exec("nft list flowtables").contains("flowtable f"));
    }
);
