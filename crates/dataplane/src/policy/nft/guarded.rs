//! Lists the endpoints that the kernel's table guards. The node that wrote the table need not be running.

use super::foreign::observed::ForeignRule;
use super::message::TABLE_NAME;
use super::render::names;
use super::table::TableFamily;
use crate::error::DataplaneResult;
use crate::netns::Netns;
use crate::policy::GuardedEndpoint;
use nlink::Connection;
use nlink::netlink::Nftables;
use nlink::netlink::nftables::Family;
use std::collections::BTreeSet;
use tortie_plan::PolicyDirection;

/// Returns the guarded endpoints; empty if the table does not exist.
pub async fn guarded_endpoints(netns: &Netns) -> DataplaneResult<BTreeSet<GuardedEndpoint>> {
    list_endpoints(&netns.nftables()?).await.map_err(|error| TableFamily::Inet.error(&error))
}

async fn list_endpoints(connection: &Connection<Nftables>) -> nlink::Result<BTreeSet<GuardedEndpoint>> {
    let mut guarded = BTreeSet::new();
    if !connection.list_tables_in(Family::Inet).await?.iter().any(|table| table.name == TABLE_NAME) {
        return Ok(guarded);
    }
    let to_workload = names::workload("", PolicyDirection::Ingress);
    for chain in connection.list_chains_in(TABLE_NAME, Family::Inet).await? {
        let interface = chain.name.strip_prefix(&to_workload);
        guarded.extend(interface.map(|interface| GuardedEndpoint::Workload(interface.to_owned())));
    }
    let sets = connection.list_sets_in(TABLE_NAME, Family::Inet).await?;
    if sets.iter().any(|set| set.name == names::HOST_IN_MAP) {
        for element in connection.list_set_elements(TABLE_NAME, names::HOST_IN_MAP, Family::Inet).await? {
            let interface = String::from_utf8_lossy(element.key()).trim_end_matches('\0').to_owned();
            guarded.insert(GuardedEndpoint::Host(Some(interface)));
        }
    }
    // Interfaces that are not in the map go to the endpoint of all interfaces.
    let everywhere = format!("{}/", names::HOST_IN_MAP);
    for rule in connection.list_rules(TABLE_NAME, Family::Inet).await? {
        if ForeignRule::new(&rule).target.is_some_and(|target| target.starts_with(&everywhere)) {
            guarded.insert(GuardedEndpoint::Host(None));
        }
    }
    Ok(guarded)
}
