//! Lists the endpoints that the kernel's table guards. The node that wrote the table need not be running.

use super::foreign::observed::ForeignRule;
use super::message::TABLE_NAME;
use super::render::names;
use super::table::TableFamily;
use crate::error::{DataplaneError, DataplaneResult};
use crate::netns::Netns;
use crate::policy::GuardedEndpoint;
use nlink::netlink::nftables::Family;
use std::collections::BTreeSet;
use tortie_plan::PolicyDirection;

/// Returns the guarded endpoints; empty if the table does not exist.
pub(crate) async fn guarded_endpoints(netns: &Netns) -> DataplaneResult<BTreeSet<GuardedEndpoint>> {
    let connection = netns.nftables()?;
    let describe = |error: nlink::Error| DataplaneError::kernel(TableFamily::Inet.object(), &error);
    let mut guarded = BTreeSet::new();
    let tables = connection.list_tables_in(Family::Inet).await.map_err(describe)?;
    if !tables.iter().any(|table| table.name == TABLE_NAME) {
        return Ok(guarded);
    }
    let to_workload = names::workload("", PolicyDirection::Ingress);
    for chain in connection.list_chains_in(TABLE_NAME, Family::Inet).await.map_err(describe)? {
        let interface = chain.name.strip_prefix(&to_workload);
        guarded.extend(interface.map(|interface| GuardedEndpoint::Workload(interface.to_owned())));
    }
    let sets = connection.list_sets_in(TABLE_NAME, Family::Inet).await.map_err(describe)?;
    if sets.iter().any(|set| set.name == names::HOST_IN_MAP) {
        let elements = connection.list_set_elements(TABLE_NAME, names::HOST_IN_MAP, Family::Inet).await;
        for element in elements.map_err(describe)? {
            let interface = String::from_utf8_lossy(element.key()).trim_end_matches('\0').to_owned();
            guarded.insert(GuardedEndpoint::Host(Some(interface)));
        }
    }
    // Interfaces that are not in the map go to the endpoint of all interfaces.
    let everywhere = format!("{}/", names::HOST_IN_MAP);
    for rule in connection.list_rules(TABLE_NAME, Family::Inet).await.map_err(describe)? {
        if ForeignRule::new(&rule).target.is_some_and(|target| target.starts_with(&everywhere)) {
            guarded.insert(GuardedEndpoint::Host(None));
        }
    }
    Ok(guarded)
}
