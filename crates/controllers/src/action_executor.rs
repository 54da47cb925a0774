//! Executes the actions that the cores return. Failures are logged and counted; the next reconciliation returns a
//! failed action again.

use crate::absence::{AbsenceSubject, SubjectOrigin};
use crate::balancer::{self, AddressAssignment, AddressChoice};
use crate::leader_loop::ControllerContext;
use crate::lifecycle;
use crate::node::garbage;
use crate::node::pods::may_hold;
use crate::policy_names::{PolicyRename, has_same_content};
use crate::write::ObjectWrite;
use ipnet::IpNet;
use std::net::IpAddr;
use tortie_http::liveness::ComponentHeartbeat;
use tortie_ipam::block::ReleaseRequest;
use tortie_ipam::owner::attribute;
use tortie_ipam::pool::AddressUse;
use tortie_ipam::{AddressHolder, Allocator, AssignRequest, IpamError, SpecificRequest};
use tortie_model::{KeyRange, Kind, Resource, Revision, StoreKey, StoreValue};
use tortie_store::orchestrator::OrchestratorClient;
use tortie_store::{ResourceClient, StoreClient, StoreError};

/// Maximum number of addresses released in one call.
const MAX_RELEASE_BATCH: usize = 10_000;

#[derive(Debug)]
pub struct ActionExecutor {
    pub resources: ResourceClient,
    pub orchestrator: OrchestratorClient,
    /// Client for Kubernetes objects; the datastore's client if Kubernetes is the datastore.
    kubernetes: StoreClient,
    allocator: Allocator,
    namespace: String,
    /// Sent for each action: there may be thousands, each with its own timeout.
    pub heartbeat: ComponentHeartbeat,
}

/// Reason why an action failed.
#[derive(Debug, thiserror::Error)]
enum ActionError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Ipam(#[from] IpamError),
    /// Fewer addresses than requested were assigned.
    #[error("{0}")]
    Shortfall(String),
    #[error(
        "{0} exists with different content; both policies are in force. Delete the custom resource of the wrong one"
    )]
    OtherPolicy(StoreKey),
}

/// Result of executing a batch of actions.
#[derive(Debug, Default)]
pub struct CollectionOutcome {
    pub released: Vec<IpAddr>,
    pub failures: u64,
}

impl ActionExecutor {
    pub fn new(context: &ControllerContext, heartbeat: ComponentHeartbeat) -> ActionExecutor {
        let allocator = Allocator::new(context.client.clone(), balancer::block_owner());
        ActionExecutor {
            resources: ResourceClient::new(context.client.clone()),
            orchestrator: context.orchestrator.clone(),
            kubernetes: context.kubernetes.clone().unwrap_or_else(|| context.client.clone()),
            allocator,
            namespace: context.namespace.clone(),
            heartbeat,
        }
    }

    /// Returns whether an object does not exist, by reading it individually. An inconclusive response is an error.
    pub async fn is_absent(&self, subject: &AbsenceSubject) -> tortie_store::StoreResult<bool> {
        self.heartbeat.beat();
        match subject {
            AbsenceSubject::PodHold { pod, node, addresses } => {
                let found = self.orchestrator.pod_hold(&pod.namespace, &pod.name).await?;
                Ok(!addresses.iter().any(|address| may_hold(found.as_ref(), node.as_deref(), *address)))
            }
            AbsenceSubject::ServiceHold { service, handle } => {
                let key =
                    StoreKey::Service { namespace: service.namespace.clone(), name: service.name.clone() };
                let found = self.kubernetes.look_up(&key).await?;
                Ok(match found.map(|entry| entry.value) {
                    Some(StoreValue::Service(found)) => {
                        balancer::derive_handle(service, &found.uid) != *handle
                    }
                    Some(_) => false,
                    None => true,
                })
            }
            AbsenceSubject::PoolOfAddress { address } => {
                let listing = self.resources.client().list(&KeyRange::all(Kind::IPPool)).await?;
                if let Some(error) = listing.unreadable.into_iter().next() {
                    return Err(error);
                }
                // Revision 0 means that the API server does not serve the resource.
                if listing.revision == Revision::from(0) {
                    return Err(StoreError::Datastore("the API server does not serve IPPools".to_owned()));
                }
                is_outside_all_pools(listing.entries.iter().map(|entry| &entry.value), *address)
            }
            AbsenceSubject::Object { origin: SubjectOrigin::Kubernetes, key } => {
                Ok(self.kubernetes.look_up(key).await?.is_none())
            }
            AbsenceSubject::Object { origin: SubjectOrigin::Datastore, key } => {
                Ok(self.resources.client().look_up(key).await?.is_none())
            }
        }
    }

    /// Releases leaked addresses and empty blocks.
    pub async fn collect_garbage(&self, actions: Vec<garbage::GarbageAction>) -> CollectionOutcome {
        let mut outcome = CollectionOutcome::default();
        let mut leaks: Vec<ReleaseRequest> = Vec::new();
        for action in actions {
            self.heartbeat.beat();
            match action {
                garbage::GarbageAction::Release { handle, addresses } => {
                    tracing::info!(handle, addresses = addresses.len(), "releasing leaked addresses");
                    leaks.extend(addresses);
                }
                garbage::GarbageAction::ReleaseBlock { owner, cidr } => {
                    match self.allocator.release_affinity(&owner, cidr, true).await {
                        Ok(()) => tracing::info!(%owner, %cidr, "released an empty block"),
                        Err(IpamError::DoesNotExist { .. }) => {}
                        Err(error) => {
                            tracing::info!(%error, %owner, %cidr, "cannot release a block");
                            outcome.failures += 1;
                        }
                    }
                }
            }
        }
        for batch in leaks.chunks(MAX_RELEASE_BATCH) {
            self.heartbeat.beat();
            let (released, failures) = self.release(batch).await;
            outcome.released.extend(released);
            outcome.failures += failures;
        }
        outcome
    }

    async fn release(&self, addresses: &[ReleaseRequest]) -> (Vec<IpAddr>, u64) {
        match self.allocator.release(addresses).await {
            Ok(report) => {
                if let Some(error) = &report.error {
                    tracing::info!(%error, "cannot release some addresses");
                }
                (report.released, u64::from(report.error.is_some()))
            }
            Err(error) => {
                tracing::warn!(%error, "cannot release addresses; retrying");
                (Vec::new(), 1)
            }
        }
    }

    /// Executes an action of the balancer. Returns whether it succeeded.
    pub async fn execute_balancer_action(&self, action: balancer::BalancerAction) -> bool {
        self.heartbeat.beat();
        match action {
            balancer::BalancerAction::Release(addresses) => self.release(&addresses).await.1 == 0,
            balancer::BalancerAction::Assign(assignment) => {
                let service = assignment.service.clone();
                let assigned = self.assign(assignment).await;
                if let Err(error) = &assigned {
                    tracing::warn!(
                        %error,
                        namespace = service.namespace,
                        service = service.name,
                        "cannot assign an address to a service; retrying"
                    );
                }
                assigned.is_ok()
            }
            balancer::BalancerAction::Report { service, uid, addresses } => {
                let reported =
                    self.orchestrator.set_ingress(&service.namespace, &service.name, &uid, &addresses).await;
                match reported {
                    Ok(()) | Err(StoreError::DoesNotExist { .. }) => true,
                    Err(error) => {
                        tracing::warn!(%error, "cannot write the status of a service; retrying");
                        false
                    }
                }
            }
        }
    }

    /// Executes a lifecycle action. Returns whether it succeeded.
    pub async fn execute_lifecycle_action(&self, action: lifecycle::LifecycleAction) -> bool {
        self.heartbeat.beat();
        let (object, outcome) = match action {
            lifecycle::LifecycleAction::Update(resource) => {
                let write = ObjectWrite::Update(resource);
                let key = write.key().to_string();
                let written = write.execute_unchanged(self.resources.client()).await;
                (key, written.map_err(ActionError::from))
            }
            lifecycle::LifecycleAction::ReleaseBlocks(cidr) => {
                // The pool may have blocks of nodes and blocks of load balancers.
                let hosts = self.allocator.release_pool_affinities(cidr).await;
                let load_balancers = self
                    .allocator
                    .release_owner_affinities(&balancer::block_owner(), Some(cidr), false)
                    .await;
                let released = hosts.and(load_balancers);
                (cidr.to_string(), released.map_err(ActionError::from))
            }
        };
        if let Err(error) = &outcome {
            tracing::warn!(%error, object, "cannot update a pool or tier; retrying");
        }
        outcome.is_ok()
    }

    /// Returns the reason if policies must not be renamed yet. All tortie-node pods must run this version, and there
    /// must be no calico-node pods, because other versions may look up policies by the old names.
    pub async fn find_rename_obstacle(&self) -> tortie_store::StoreResult<Option<String>> {
        for namespace in ["kube-system", "calico-system"] {
            let rollout = self.orchestrator.rollout(namespace, "calico-node").await?;
            if let Some(rollout) = rollout.filter(|rollout| rollout.wanted > 0) {
                let count = rollout.wanted;
                return Ok(Some(format!("DaemonSet {namespace}/calico-node still runs on {count} nodes")));
            }
        }
        let own = self.orchestrator.rollout(&self.namespace, "tortie-node").await?;
        Ok(own
            .filter(|rollout| !rollout.is_complete)
            .map(|_| "DaemonSet tortie-node is being rolled out".to_owned()))
    }

    /// Renames a policy. Returns whether it succeeded.
    pub async fn rename(&self, rename: PolicyRename) -> bool {
        self.heartbeat.beat();
        let renamed = self.try_rename(&rename).await;
        let PolicyRename { from, to, .. } = rename;
        match &renamed {
            Ok(()) => tracing::info!(%from, %to, "renamed a policy"),
            Err(error) => tracing::warn!(%error, %from, "cannot rename a policy; retrying"),
        }
        renamed.is_ok()
    }

    async fn try_rename(&self, rename: &PolicyRename) -> Result<(), ActionError> {
        let PolicyRename { from, to, resource } = rename;
        let client = self.resources.client();
        match client.create(to, &StoreValue::Resource(resource.clone())).await {
            Err(StoreError::AlreadyExists { current: Some(current), .. })
                if has_same_content(resource, &current) => {}
            Err(StoreError::AlreadyExists { .. }) => return Err(ActionError::OtherPolicy(to.clone())),
            created => drop(created?),
        }
        let version = client.revision(&resource.metadata().resource_version)?;
        match client.delete(from, Some(&version)).await {
            Ok(_) | Err(StoreError::DoesNotExist { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn assign(&self, assignment: AddressAssignment) -> Result<(), ActionError> {
        let mut attributes = assignment.attributes;
        let now = format!("{:.9}", jiff::Timestamp::now()).replace('T', " ").replace('Z', " +0000 UTC");
        attributes.insert(attribute::TIMESTAMP_ATTRIBUTE.to_owned(), now);
        let holder = AddressHolder::new(Some(&assignment.handle), attributes);
        match assignment.choice {
            AddressChoice::Addresses(addresses) => {
                for address in addresses {
                    let request = SpecificRequest {
                        intended: Some(AddressUse::LoadBalancer),
                        max_per_handle: Some(1),
                        ..SpecificRequest::new(address, holder.clone())
                    };
                    self.allocator.assign_address(&request).await?;
                }
                Ok(())
            }
            AddressChoice::Any { v4, v6, v4_pools, v6_pools } => {
                let request = AssignRequest {
                    v4_pools,
                    v6_pools,
                    intended: AddressUse::LoadBalancer,
                    // With this limit, a repeated request returns the same address.
                    max_per_handle: Some(1),
                    ..AssignRequest::new(holder, u32::from(v4), u32::from(v6))
                };
                let assigned = self.allocator.auto_assign(&request).await.map_err(|failed| failed.error)?;
                let shortfalls: Vec<String> =
                    [assigned.v4.shortfall(), assigned.v6.shortfall()].into_iter().flatten().collect();
                if shortfalls.is_empty() {
                    Ok(())
                } else {
                    Err(ActionError::Shortfall(shortfalls.join("; ")))
                }
            }
        }
    }
}

/// Returns whether none of these pools contains the address. A pool whose CIDR cannot be parsed is an error.
fn is_outside_all_pools<'a>(
    pools: impl Iterator<Item = &'a StoreValue>,
    address: IpAddr,
) -> tortie_store::StoreResult<bool> {
    for pool in pools {
        let StoreValue::Resource(Resource::IPPool(pool)) = pool else { continue };
        let cidr: IpNet =
            pool.spec.cidr.parse().map_err(|error: ipnet::AddrParseError| StoreError::Parse {
                key: StoreKey::resource(Kind::IPPool, "", &pool.metadata.name).to_string(),
                value: pool.spec.cidr.clone(),
                reason: error.to_string(),
            })?;
        if cidr.contains(&address) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_readable_pools_prove_an_absence() {
        let pool = |cidr: &str| {
            let text = json!({"metadata": {"name": "p"}, "spec": {"cidr": cidr}}).to_string();
            StoreValue::decode(&StoreKey::resource(Kind::IPPool, "", "p"), text.as_bytes()).unwrap()
        };
        let address = "198.51.100.1".parse().unwrap();
        let is_outside = |cidrs: &[&str]| {
            let pools: Vec<StoreValue> = cidrs.iter().map(|cidr| pool(cidr)).collect();
            is_outside_all_pools(pools.iter(), address)
        };
        assert!(is_outside(&[]).unwrap());
        assert!(is_outside(&["192.0.2.0/24", "fd51::/64"]).unwrap());
        assert!(!is_outside(&["192.0.2.0/24", "198.51.100.0/24"]).unwrap());
        assert!(matches!(is_outside(&["nonsense"]), Err(StoreError::Parse { .. })));
    }
}
