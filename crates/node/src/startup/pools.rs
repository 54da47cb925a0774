//! Creates the default IP pools of a cluster.

use super::interfaces::HostInterface;
use super::{EnvironmentVariables, StartupError};
use ipnet::IpNet;
use std::net::Ipv6Addr;
use tortie_model::ObjectMeta;
use tortie_model::kinds::{EncapMode, IPPool, IPPoolSpec};
use tortie_store::{ResourceClient, StoreError};

/// Creates a pool for each address family that has none.
pub async fn ensure_pools(
    resources: &ResourceClient,
    variables: &EnvironmentVariables,
    interfaces: &[HostInterface],
) -> Result<(), StartupError> {
    let v4 = variables.given("CALICO_IPV4POOL_CIDR");
    let v6 = variables.given("CALICO_IPV6POOL_CIDR");
    if variables.flag("NO_DEFAULT_POOLS", false) {
        return match (v4, v6) {
            (None, None) => Ok(()),
            _ => Err(StartupError::Setting(
                "NO_DEFAULT_POOLS cannot be set together with CALICO_IPV4POOL_CIDR or CALICO_IPV6POOL_CIDR"
                    .to_owned(),
            )),
        };
    }
    let pools = resources.list_as::<IPPoolSpec>(None).await?;
    let exists = |v6: bool| pools.iter().any(|pool| pool.spec.cidr.contains(':') == v6);
    if !exists(false) && v4 != Some("none") {
        let cidr = match v4 {
            Some(cidr) => cidr.to_owned(),
            None => choose_free_ipv4(interfaces),
        };
        create(resources, build_pool(variables, "IPV4", &cidr, 26, true)?).await?;
    }
    let v6_possible =
        variables.flag("FELIX_IPV6SUPPORT", true) && std::path::Path::new("/proc/sys/net/ipv6").exists();
    if !exists(true) && v6 != Some("none") && v6_possible {
        let cidr = v6.map_or_else(generate_ula, str::to_owned);
        create(resources, build_pool(variables, "IPV6", &cidr, 122, false)?).await?;
    }
    Ok(())
}

fn build_pool(
    variables: &EnvironmentVariables,
    family: &str,
    cidr: &str,
    usual_block_size: i32,
    usual_nat: bool,
) -> Result<IPPool, StartupError> {
    let name = |setting: &str| format!("CALICO_{family}POOL_{setting}");
    let block_size = match variables.get(&name("BLOCK_SIZE")) {
        "" => usual_block_size,
        text => text
            .parse()
            .map_err(|_| StartupError::Setting(format!("{}={text} is not a number", name("BLOCK_SIZE"))))?,
    };
    let meta =
        ObjectMeta { name: format!("default-{}-ippool", family.to_lowercase()), ..ObjectMeta::default() };
    let spec = IPPoolSpec {
        cidr: cidr.to_owned(),
        block_size,
        ipip_mode: if family == "IPV4" { parse_mode(variables, &name("IPIP"))? } else { EncapMode::Never },
        vxlan_mode: parse_mode(variables, &name("VXLAN"))?,
        nat_outgoing: variables.flag(&name("NAT_OUTGOING"), usual_nat),
        node_selector: variables.get(&name("NODE_SELECTOR")).to_owned(),
        disable_bgp_export: variables.flag(&name("DISABLE_BGP_EXPORT"), false),
        ..IPPoolSpec::default()
    };
    Ok(IPPool::new(meta, spec))
}

async fn create(resources: &ResourceClient, pool: IPPool) -> Result<(), StartupError> {
    let cidr = pool.spec.cidr.clone();
    match resources.create(pool.into()).await {
        Ok(_) => {
            tracing::info!(cidr, "created the default IP pool");
            Ok(())
        }
        // Another node created it first, perhaps with another CIDR that this one overlaps.
        Err(StoreError::AlreadyExists { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn parse_mode(variables: &EnvironmentVariables, name: &str) -> Result<EncapMode, StartupError> {
    let text = variables.get(name);
    match text.to_lowercase().as_str() {
        "" | "off" | "never" => Ok(EncapMode::Never),
        "crosssubnet" | "cross-subnet" => Ok(EncapMode::CrossSubnet),
        "always" => Ok(EncapMode::Always),
        _ => Err(StartupError::Setting(format!("{name}={text} is not a mode"))),
    }
}

/// Returns 192.168.0.0/16 unless the host has an address in it, else the first of 172.16-31.0.0/16 without one.
fn choose_free_ipv4(interfaces: &[HostInterface]) -> String {
    let mut candidates = std::iter::once("192.168.0.0/16".to_owned())
        .chain((16..32).map(|second| format!("172.{second}.0.0/16")));
    let free = candidates.find(|cidr| {
        let mut addresses = interfaces.iter().flat_map(|interface| &interface.addresses);
        cidr.parse::<IpNet>().is_ok_and(|net| !addresses.any(|address| net.contains(&address.addr())))
    });
    free.unwrap_or_else(|| "192.168.0.0/16".to_owned())
}

fn generate_ula() -> String {
    let random: [u8; 5] = rand::random();
    let mut octets = [0; 16];
    octets[0] = 0xfd;
    octets[1..6].copy_from_slice(&random);
    format!("{}/48", Ipv6Addr::from(octets))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_pool_avoids_the_host() {
        let host =
            |net: &str| vec![HostInterface { name: "e".into(), addresses: vec![net.parse().unwrap()] }];
        assert_eq!(choose_free_ipv4(&host("10.0.0.1/8")), "192.168.0.0/16");
        assert_eq!(choose_free_ipv4(&host("192.168.7.1/24")), "172.16.0.0/16");
    }

    #[test]
    fn settings_make_the_pool() {
        let variables = [("CALICO_IPV4POOL_VXLAN", "CrossSubnet"), ("CALICO_IPV4POOL_BLOCK_SIZE", "28")];
        let variables =
            EnvironmentVariables(variables.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect());
        let made = build_pool(&variables, "IPV4", "10.0.0.0/16", 26, true).unwrap();
        assert_eq!(made.metadata.name, "default-ipv4-ippool");
        assert_eq!((made.spec.block_size, made.spec.nat_outgoing), (28, true));
        assert_eq!(made.spec.vxlan_mode, EncapMode::CrossSubnet);
        let bad = EnvironmentVariables([("CALICO_IPV6POOL_VXLAN".to_owned(), "maybe".to_owned())].into());
        assert!(build_pool(&bad, "IPV6", "fd00::/48", 122, false).is_err());
        assert!(generate_ula().starts_with("fd"));
    }
}
