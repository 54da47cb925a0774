//! Registers the node: writes its addresses to the Node object.

use super::interfaces::{HostInterface, list_local_interfaces};
use super::{EnvironmentVariables, StartupError, defaults, detect, pools};
use ipnet::IpNet;
use std::net::IpAddr;
use tortie_model::kinds::{
    Node, NodeAddress, NodeAddressType, NodeBGPSpec, NodeInterface, NodeSpec, OrchRef,
};
use tortie_model::scalar::ASNumber;
use tortie_model::{Kind, ObjectMeta};
use tortie_store::{ResourceClient, StoreError};

const MAX_REGISTER_ATTEMPTS: usize = 10;

/// Registers the node and creates the default objects of a cluster.
pub async fn register(
    resources: &ResourceClient,
    variables: &EnvironmentVariables,
    name: &str,
    version: &str,
) -> Result<(), StartupError> {
    let interfaces = list_interfaces()?;
    update_node_object(resources, variables, name, &interfaces).await?;
    pools::ensure_pools(resources, variables, &interfaces).await?;
    defaults::ensure_defaults(resources, variables, name, version).await
}

/// The interfaces of the host at the last comparison with the Node object.
#[derive(Debug, Default)]
pub struct ComparedInterfaces(Option<Vec<HostInterface>>);

/// Updates the Node object if the host's addresses changed. Reads the datastore only if the interfaces differ from
/// the last comparison.
pub async fn refresh_addresses(
    resources: &ResourceClient,
    variables: &EnvironmentVariables,
    name: &str,
    compared: &mut ComparedInterfaces,
) -> Result<(), StartupError> {
    let found = list_interfaces()?;
    if compared.0.as_ref() != Some(&found) {
        update_node_object(resources, variables, name, &found).await?;
        compared.0 = Some(found);
    }
    Ok(())
}

fn list_interfaces() -> Result<Vec<HostInterface>, StartupError> {
    list_local_interfaces()
        .map_err(|error| StartupError::Detection(format!("cannot list interfaces: {error}")))
}

/// Writes the addresses of the node to its Node object, unless the object has them already.
async fn update_node_object(
    resources: &ResourceClient,
    variables: &EnvironmentVariables,
    name: &str,
    interfaces: &[HostInterface],
) -> Result<(), StartupError> {
    let mut last = None;
    for _ in 0..MAX_REGISTER_ATTEMPTS {
        let stored = match resources.get_as::<NodeSpec>("", name).await {
            Ok(node) => Some(node),
            Err(StoreError::DoesNotExist { .. }) if resources.client().capabilities().derives(Kind::Node) => {
                return Err(StartupError::Store(StoreError::Datastore(format!(
                    "there is no Node {name} in Kubernetes yet: kubelet creates it; if the Node of this host has another name, \
                     set NODENAME"
                ))));
            }
            Err(StoreError::DoesNotExist { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        let mut node = stored.clone().unwrap_or_else(|| {
            let meta = ObjectMeta { name: name.to_owned(), ..ObjectMeta::default() };
            Node::new(meta, NodeSpec::default())
        });
        set_node_fields(&mut node, variables, interfaces)?;
        if stored.as_ref() == Some(&node) {
            return Ok(());
        }
        check_conflict(resources, variables, &node).await?;
        let written = match stored {
            Some(_) => resources.update(node.into()).await,
            None => resources.create(node.into()).await,
        };
        match written {
            Ok(_) => return Ok(()),
            Err(error) if error.is_lost_race() => last = Some(error),
            Err(error) => return Err(error.into()),
        }
    }
    Err(last.map_or_else(
        || StartupError::Detection("other clients keep changing the Node object of this node".to_owned()),
        Into::into,
    ))
}

/// Sets the fields of the Node object from the environment and the host's interfaces.
fn set_node_fields(
    node: &mut Node,
    variables: &EnvironmentVariables,
    interfaces: &[HostInterface],
) -> Result<(), StartupError> {
    let has_networking = variables.get("CALICO_NETWORKING_BACKEND") != "none";
    let bgp = node.spec.bgp.get_or_insert_with(NodeBGPSpec::default);
    if has_networking {
        bgp.ipv4_address = choose_address(variables, interfaces, &bgp.ipv4_address, false)?;
        bgp.ipv6_address = choose_address(variables, interfaces, &bgp.ipv6_address, true)?;
        if bgp.ipv4_address.is_empty() && bgp.ipv6_address.is_empty() {
            return Err(StartupError::Detection(
                "the node has neither an IPv4 nor an IPv6 address: set IP or IP_AUTODETECTION_METHOD"
                    .to_owned(),
            ));
        }
    }
    let number = variables.get("AS");
    if !number.is_empty() {
        let parsed: ASNumber =
            number.parse().map_err(|_| StartupError::Setting(format!("AS={number} is not an AS number")))?;
        bgp.as_number = Some(parsed);
    }
    let own: Vec<String> = [&bgp.ipv4_address, &bgp.ipv6_address]
        .into_iter()
        .filter(|address| !address.is_empty())
        .cloned()
        .collect();
    if node.spec.bgp == Some(NodeBGPSpec::default()) {
        node.spec.bgp = None;
    }
    for address in own {
        let listed = node.spec.addresses.iter().any(|other| other.address == address);
        if !listed {
            node.spec.addresses.retain(|other| {
                other.type_ != NodeAddressType::CalicoNodeIP
                    || other.address.contains(':') != address.contains(':')
            });
            node.spec.addresses.push(NodeAddress { address, type_: NodeAddressType::CalicoNodeIP });
        }
    }
    node.spec.interfaces = list_published_interfaces(variables, interfaces);
    let reference = variables.get("CALICO_K8S_NODE_REF");
    if !reference.is_empty() {
        node.spec.orch_refs =
            vec![OrchRef { node_name: reference.to_owned(), orchestrator: "k8s".to_owned() }];
    }
    Ok(())
}

/// Returns the address of the node of one family: the configured, detected or stored address. May be empty.
fn choose_address(
    variables: &EnvironmentVariables,
    interfaces: &[HostInterface],
    stored: &str,
    v6: bool,
) -> Result<String, StartupError> {
    let [variable, method] =
        if v6 { ["IP6", "IP6_AUTODETECTION_METHOD"] } else { ["IP", "IP_AUTODETECTION_METHOD"] };
    let given = variables.get(variable);
    let is_detected = given == "autodetect" || (given.is_empty() && stored.is_empty() && !v6);
    if is_detected {
        return match detect::detect(variables.get(method), interfaces, v6) {
            Ok(choice) => {
                let address = choice.address.to_string();
                if address != stored {
                    tracing::info!(address, reason = choice.reason, "detected the address of the node");
                }
                Ok(address)
            }
            Err(error) if !stored.is_empty() => {
                tracing::warn!(
                    reason = error.to_string(),
                    stored,
                    "cannot detect an address; the node keeps its address in the datastore"
                );
                Ok(stored.to_owned())
            }
            Err(error) => Err(error.into()),
        };
    }
    if given.is_empty() || given == "none" {
        return Ok(stored.to_owned());
    }
    let net = given.parse::<IpNet>().ok().or_else(|| {
        let address: IpAddr = given.parse().ok()?;
        let masked = if v6 { None } else { detect::with_mask(address, interfaces) };
        Some(masked.unwrap_or_else(|| IpNet::from(address)))
    });
    let net = net.filter(|net| net.addr().is_ipv6() == v6).ok_or_else(|| {
        StartupError::Setting(format!(
            "{variable}={given} is not an {} address",
            if v6 { "IPv6" } else { "IPv4" }
        ))
    })?;
    if detect::with_mask(net.addr(), interfaces).is_none() {
        tracing::warn!(address = %net, "no interface of the host has the address of the node; other nodes cannot reach it");
    }
    Ok(net.to_string())
}

/// Returns the interfaces that have global unicast addresses of the enabled families.
fn list_published_interfaces(
    variables: &EnvironmentVariables,
    interfaces: &[HostInterface],
) -> Vec<NodeInterface> {
    let mut published = Vec::new();
    for interface in detect::find_published(interfaces) {
        let addresses = interface.addresses.iter().map(IpNet::addr);
        let usable = addresses.filter(|address| {
            let setting = variables.get(if address.is_ipv6() { "IP6" } else { "IP" });
            detect::is_global_unicast(*address) && !setting.is_empty() && setting != "none"
        });
        let addresses: Vec<String> = usable.map(|address| address.to_string()).collect();
        if !addresses.is_empty() {
            published.push(NodeInterface { name: interface.name.clone(), addresses });
        }
    }
    published
}

/// Fails if another node has the same address, because the two would receive each other's traffic.
async fn check_conflict(
    resources: &ResourceClient,
    variables: &EnvironmentVariables,
    node: &Node,
) -> Result<(), StartupError> {
    if variables.flag("DISABLE_NODE_IP_CHECK", false) {
        return Ok(());
    }
    for other in resources.list_as::<NodeSpec>(None).await? {
        if other.metadata.name == node.metadata.name {
            continue;
        }
        for (v6, family) in [(false, "IPv4"), (true, "IPv6")] {
            let address = read_node_address(node, v6);
            if let Some(address) = address.filter(|own| read_node_address(&other, v6) == Some(*own)) {
                let address = address.to_owned();
                return Err(StartupError::Conflict { family, address, other: other.metadata.name });
            }
        }
    }
    Ok(())
}

/// Returns the address of a node without its prefix length.
fn read_node_address(node: &Node, v6: bool) -> Option<&str> {
    let bgp = node.spec.bgp.as_ref()?;
    let text = if v6 { &bgp.ipv6_address } else { &bgp.ipv4_address };
    text.split('/').next().filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> EnvironmentVariables {
        EnvironmentVariables(pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect())
    }

    fn host() -> Vec<HostInterface> {
        vec![HostInterface {
            name: "eth0".into(),
            addresses: vec!["192.0.2.5/24".parse().unwrap(), "2001:db8::5/64".parse().unwrap()],
        }]
    }

    #[test]
    fn addresses_are_configured_detected_or_stored() {
        let choose = |pairs: &[(&str, &str)], stored: &str, v6: bool| {
            choose_address(&variables(pairs), &host(), stored, v6).map_err(|error| error.to_string())
        };
        assert_eq!(choose(&[], "", false).as_deref(), Ok("192.0.2.5/24"));
        assert_eq!(choose(&[], "192.0.2.9/24", false).as_deref(), Ok("192.0.2.9/24"));
        assert_eq!(choose(&[("IP", "autodetect")], "192.0.2.9/24", false).as_deref(), Ok("192.0.2.5/24"));
        assert_eq!(choose(&[("IP", "192.0.2.5")], "", false).as_deref(), Ok("192.0.2.5/24"));
        assert_eq!(choose(&[("IP", "192.0.2.7")], "", false).as_deref(), Ok("192.0.2.7/32"));
        assert_eq!(choose(&[("IP", "none")], "", false).as_deref(), Ok(""));
        assert_eq!(choose(&[], "", true).as_deref(), Ok(""));
        assert_eq!(choose(&[("IP6", "autodetect")], "", true).as_deref(), Ok("2001:db8::5/64"));
        assert!(choose(&[("IP", "2001:db8::5")], "", false).is_err());
        let pairs = [("IP", "autodetect"), ("IP_AUTODETECTION_METHOD", "interface=nope")];
        assert!(choose(&pairs, "", false).is_err());
        assert_eq!(choose(&pairs, "192.0.2.9/24", false).as_deref(), Ok("192.0.2.9/24"));
    }

    #[test]
    fn setting_fields_twice_changes_nothing() {
        let settings = variables(&[("IP", "autodetect"), ("IP6", "autodetect"), ("AS", "64513")]);
        let mut node = Node::new(ObjectMeta { name: "n1".into(), ..Default::default() }, NodeSpec::default());
        set_node_fields(&mut node, &settings, &host()).unwrap();
        node.validate().unwrap();
        assert_eq!(node.spec.interfaces[0].addresses, ["192.0.2.5", "2001:db8::5"]);
        let before = node.clone();
        set_node_fields(&mut node, &settings, &host()).unwrap();
        assert_eq!(node, before);
    }
}
