//! Proof of absence: the single check before anything is deleted or released because an object is missing.
//!
//! A list without an object may be truncated, stale or from another cluster, so it is no proof. Before each such
//! action the object is read individually, and the action is admitted only if the API server reports that it does not
//! exist. When a large share of the objects of a class is missing at once, a batch is admitted as a whole or not at
//! all, and withheld actions are reported. The guard decides; the caller reads the objects and executes the actions.

use crate::balancer::LoadBalancerServiceName;
use crate::node::garbage::MonotonicTime;
use crate::node::pods::PodName;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;
use tortie_model::{Kind, StoreKey};

/// How long a node must be missing before its addresses and blocks are released. A shorter leak grace period shortens
/// it.
const NODE_GRACE: Duration = Duration::from_secs(60);
/// Maximum number of objects read in one round: the loop that reads them has other work to do.
const MAX_PROOFS_PER_ROUND: usize = 500;
/// Number of failed reads after which a round ends: an unreachable server would otherwise delay it once per claim.
const MAX_FAILURES_PER_ROUND: usize = 3;
/// Number of missing objects that is not suspicious unless all are missing. Lower than the limit of the store's watches
/// (`ListAbsence::MIN_LARGE_ABSENCE`): those only keep objects in a cache for longer, whereas releases and deletions
/// cannot be undone.
const MAX_UNSUSPICIOUS_ABSENCES: usize = 5;
/// Delay until an object that is missing from a list but exists on the server is checked again.
const ABSENCE_RECHECK_DELAY: Duration = Duration::from_secs(10);
/// Delay until the next round if claims are left after a full round.
const PROOF_ROUND_DELAY: Duration = Duration::from_secs(1);

/// The API or datastore that an object is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SubjectOrigin {
    Kubernetes,
    Datastore,
}

/// An object or relation that must be absent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AbsenceSubject {
    /// A pod that holds any of the addresses assigned to it. The node is named as in Kubernetes.
    PodHold {
        pod: PodName,
        node: Option<String>,
        addresses: Vec<IpAddr>,
    },
    /// A service whose addresses have this handle.
    ServiceHold {
        service: LoadBalancerServiceName,
        handle: String,
    },
    /// Any pool that contains this address.
    PoolOfAddress {
        address: IpAddr,
    },
    Object {
        origin: SubjectOrigin,
        key: StoreKey,
    },
}

/// Class of objects that are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SubjectClass {
    Pods,
    Services,
    Nodes,
    PoolAddresses,
    Profiles,
    Policies,
    Others,
}

/// An action and the subjects that must be absent for it. The set is empty if the action relies on existing objects
/// only.
#[derive(Clone, Debug, PartialEq)]
pub struct AbsenceClaim<A> {
    pub action: A,
    pub absent: BTreeSet<AbsenceSubject>,
}

/// Number of objects of each class that the datastore refers to, missing or not.
pub type ReferenceCounts = BTreeMap<SubjectClass, usize>;

/// Result of one round of claims.
#[derive(Debug)]
pub struct ClaimAdmission<A> {
    pub actions: Vec<A>,
    /// When to submit the claims that were not admitted again.
    pub retry: Option<MonotonicTime>,
}

/// Counters for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AbsenceCounters {
    /// Objects that were read to prove that they do not exist.
    pub proofs: u64,
    /// Objects that were missing from a list but exist.
    pub contradictions: u64,
    /// Objects that could not be read.
    pub failures: u64,
}

/// A class of which such a large share is missing that no action is admitted until all absences are confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ClassSuspension {
    missing: usize,
    referenced: usize,
    claims: usize,
    reason: String,
    until: MonotonicTime,
}

/// Reason why an action cannot be admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ClaimObstacle {
    Exists { subject: AbsenceSubject },
    Unknown { subject: AbsenceSubject, error: String },
}

#[derive(Debug)]
pub struct AbsenceGuard {
    node_grace: Duration,
    /// Time since which the lists of Kubernetes are complete.
    synced: Option<MonotonicTime>,
    /// Nodes that were removed within their grace period.
    removed_nodes: BTreeMap<String, MonotonicTime>,
    /// Objects that exist although they were missing from a list, and until when they are not read again.
    contradicted: BTreeMap<AbsenceSubject, MonotonicTime>,
    /// Objects that could not be read, by caller and class: the next round starts with the other claims.
    failed: BTreeMap<(&'static str, SubjectClass), BTreeSet<AbsenceSubject>>,
    suspensions: BTreeMap<(&'static str, SubjectClass), ClassSuspension>,
    counters: AbsenceCounters,
}

impl<A> AbsenceClaim<A> {
    /// Creates a claim for an action that relies on existing objects only.
    pub fn certain(action: A) -> AbsenceClaim<A> {
        AbsenceClaim { action, absent: BTreeSet::new() }
    }

    pub fn if_absent(action: A, subject: AbsenceSubject) -> AbsenceClaim<A> {
        AbsenceClaim { action, absent: BTreeSet::from([subject]) }
    }
}

impl AbsenceSubject {
    pub fn kubernetes(key: StoreKey) -> AbsenceSubject {
        AbsenceSubject::Object { origin: SubjectOrigin::Kubernetes, key }
    }

    /// Returns the subject of a node, named as in Kubernetes.
    pub fn node(name: &str) -> AbsenceSubject {
        AbsenceSubject::kubernetes(StoreKey::resource(Kind::Node, "", name))
    }

    fn class(&self) -> SubjectClass {
        match self {
            AbsenceSubject::PodHold { .. } => SubjectClass::Pods,
            AbsenceSubject::ServiceHold { .. } => SubjectClass::Services,
            AbsenceSubject::PoolOfAddress { .. } => SubjectClass::PoolAddresses,
            AbsenceSubject::Object { key, .. } => SubjectClass::from(key),
        }
    }
}

impl From<&StoreKey> for SubjectClass {
    fn from(key: &StoreKey) -> SubjectClass {
        match key {
            StoreKey::Resource { kind: Kind::Node, .. } => SubjectClass::Nodes,
            StoreKey::Resource { kind: Kind::Profile, .. } => SubjectClass::Profiles,
            StoreKey::Resource { kind: Kind::NetworkPolicy, .. } => SubjectClass::Policies,
            _ => SubjectClass::Others,
        }
    }
}

impl fmt::Display for SubjectClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SubjectClass::Pods => "pods",
            SubjectClass::Services => "services",
            SubjectClass::Nodes => "nodes",
            SubjectClass::PoolAddresses => "pools of addresses",
            SubjectClass::Profiles => "namespaces and service accounts",
            SubjectClass::Policies => "network policies",
            SubjectClass::Others => "objects",
        })
    }
}

impl fmt::Display for AbsenceSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AbsenceSubject::PodHold { pod, .. } => write!(f, "Pod({}/{})", pod.namespace, pod.name),
            AbsenceSubject::ServiceHold { service, .. } => {
                write!(f, "Service({}/{})", service.namespace, service.name)
            }
            AbsenceSubject::PoolOfAddress { address } => write!(f, "IPPool(of {address})"),
            AbsenceSubject::Object { key, .. } => write!(f, "{key}"),
        }
    }
}

impl fmt::Display for ClaimObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClaimObstacle::Exists { subject } => write!(f, "{subject} exists"),
            ClaimObstacle::Unknown { subject, error } => {
                write!(f, "cannot determine whether {subject} exists: {error}")
            }
        }
    }
}

impl Default for AbsenceGuard {
    fn default() -> AbsenceGuard {
        AbsenceGuard {
            node_grace: NODE_GRACE,
            synced: None,
            removed_nodes: BTreeMap::new(),
            contradicted: BTreeMap::new(),
            failed: BTreeMap::new(),
            suspensions: BTreeMap::new(),
            counters: AbsenceCounters::default(),
        }
    }
}

impl AbsenceGuard {
    pub fn set_leak_grace(&mut self, grace: Option<Duration>) {
        self.node_grace = grace.unwrap_or(NODE_GRACE).min(NODE_GRACE);
    }

    /// Records that the lists of Kubernetes are complete. The grace period of nodes missing from them starts now.
    pub fn mark_synced(&mut self, now: MonotonicTime) {
        self.synced.get_or_insert(now);
    }

    pub fn put_node(&mut self, name: &str) {
        self.removed_nodes.remove(name);
    }

    pub fn remove_node(&mut self, name: &str, now: MonotonicTime) {
        let grace = self.node_grace;
        // A node removed longer ago has passed its grace period, like one that never existed.
        self.removed_nodes.retain(|_, since| now.saturating_sub(*since) < grace);
        self.removed_nodes.insert(name.to_owned(), now);
    }

    pub fn counters(&self) -> AbsenceCounters {
        self.counters
    }

    /// Returns the number of withheld actions.
    pub fn withheld(&self) -> usize {
        self.suspensions.values().map(|suspension| suspension.claims).sum()
    }

    /// Returns which actions are withheld and why, for the readiness of the controllers.
    pub fn describe_withheld(&self) -> Option<String> {
        let reasons = self.suspensions.iter().map(|((_, class), suspension)| {
            let ClassSuspension { missing, referenced, claims, reason, .. } = suspension;
            format!("{missing} of {referenced} {class} are missing from lists, {claims} actions are withheld: {reason}")
        });
        Some(reasons.collect::<Vec<String>>().join("; ")).filter(|reasons| !reasons.is_empty())
    }

    /// Admits claims whose subjects are proven absent and claims that need no proof. `scope` names the caller, which
    /// submits all its claims again in the next round.
    pub async fn admit<A, E: fmt::Display>(
        &mut self,
        scope: &'static str,
        claims: Vec<AbsenceClaim<A>>,
        references: &ReferenceCounts,
        now: MonotonicTime,
        is_absent: impl AsyncFn(&AbsenceSubject) -> Result<bool, E>,
    ) -> ClaimAdmission<A> {
        let mut admission = ClaimAdmission { actions: Vec::new(), retry: None };
        let mut classes: BTreeMap<SubjectClass, Vec<AbsenceClaim<A>>> = BTreeMap::new();
        for claim in claims {
            match claim.absent.first().map(AbsenceSubject::class) {
                Some(class) => classes.entry(class).or_default().push(claim),
                None => admission.actions.push(claim.action),
            }
        }
        self.contradicted.retain(|_, until| *until > now);
        let suspended: Vec<_> =
            self.suspensions.keys().filter(|(caller, _)| *caller == scope).copied().collect();
        for key in suspended.into_iter().filter(|(_, class)| !classes.contains_key(class)) {
            self.resume(key);
        }
        self.failed.retain(|(caller, class), _| *caller != scope || classes.contains_key(class));
        for (class, claims) in classes {
            let referenced = references.get(&class).copied().unwrap_or_default();
            let round = self.admit_class((scope, class), claims, referenced, now, &is_absent).await;
            admission.actions.extend(round.actions);
            admission.retry = choose_earlier(admission.retry, round.retry);
        }
        admission
    }

    async fn admit_class<A, E: fmt::Display>(
        &mut self,
        key: (&'static str, SubjectClass),
        mut claims: Vec<AbsenceClaim<A>>,
        referenced: usize,
        now: MonotonicTime,
        is_absent: &impl AsyncFn(&AbsenceSubject) -> Result<bool, E>,
    ) -> ClaimAdmission<A> {
        let mut admission = ClaimAdmission { actions: Vec::new(), retry: None };
        let missing = claims.iter().filter_map(|claim| claim.absent.first()).collect::<BTreeSet<_>>().len();
        let referenced = referenced.max(missing);
        let is_large =
            missing * 2 > referenced && (missing > MAX_UNSUSPICIOUS_ABSENCES || missing == referenced);
        let suspended_until = self.suspensions.get(&key).map(|suspension| suspension.until);
        if let Some(until) = suspended_until.filter(|until| is_large && *until > now) {
            admission.retry = Some(until);
            return admission;
        }
        let mut failed = self.failed.remove(&key).unwrap_or_default();
        failed.retain(|subject| claims.iter().any(|claim| claim.absent.contains(subject)));
        claims.sort_by_key(|claim| claim.absent.iter().any(|subject| failed.contains(subject)));
        let total = claims.len();
        let mut proven = BTreeSet::new();
        let mut failures = 0;
        for claim in claims {
            let until =
                claim.absent.iter().filter_map(|subject| self.find_postponement(subject, is_large)).max();
            if let Some(until) = until.filter(|until| *until > now) {
                admission.retry = choose_earlier(admission.retry, Some(until));
                continue;
            }
            if proven.len() >= MAX_PROOFS_PER_ROUND {
                admission.retry = choose_earlier(admission.retry, Some(now + PROOF_ROUND_DELAY));
                break;
            }
            let Some(obstacle) = self.find_obstacle(&claim, &mut proven, now, is_absent).await else {
                failed.retain(|subject| !claim.absent.contains(subject));
                admission.actions.push(claim.action);
                continue;
            };
            let until = now + ABSENCE_RECHECK_DELAY;
            admission.retry = choose_earlier(admission.retry, Some(until));
            if is_large {
                admission.actions.clear();
                let reason = obstacle.to_string();
                self.suspend(key, ClassSuspension { missing, referenced, claims: total, reason, until });
                return admission;
            }
            if let ClaimObstacle::Unknown { subject, .. } = obstacle {
                failed.insert(subject);
                failures += 1;
                if failures >= MAX_FAILURES_PER_ROUND {
                    break;
                }
            }
        }
        if !failed.is_empty() {
            self.failed.insert(key, failed);
        }
        self.resume(key);
        admission
    }

    /// Returns the time before which a claim on this missing subject is postponed. If a large share is missing, an
    /// existing object is not postponed but is an obstacle to the whole batch.
    fn find_postponement(&self, subject: &AbsenceSubject, is_large: bool) -> Option<MonotonicTime> {
        let contradicted = self.contradicted.get(subject).copied().filter(|_| !is_large);
        let grace = match subject {
            AbsenceSubject::Object {
                origin: SubjectOrigin::Kubernetes,
                key: StoreKey::Resource { kind: Kind::Node, name, .. },
            } => {
                let since =
                    self.removed_nodes.get(name).copied().or(self.synced).unwrap_or(MonotonicTime::MAX);
                Some(since.saturating_add(self.node_grace))
            }
            _ => None,
        };
        contradicted.max(grace)
    }

    /// Returns why a claim cannot be admitted. Subjects that are proven absent are added to `proven`.
    async fn find_obstacle<A, E: fmt::Display>(
        &mut self,
        claim: &AbsenceClaim<A>,
        proven: &mut BTreeSet<AbsenceSubject>,
        now: MonotonicTime,
        is_absent: &impl AsyncFn(&AbsenceSubject) -> Result<bool, E>,
    ) -> Option<ClaimObstacle> {
        for subject in claim.absent.iter() {
            if self.contradicted.contains_key(subject) {
                return Some(ClaimObstacle::Exists { subject: subject.clone() });
            }
            if proven.contains(subject) {
                continue;
            }
            self.counters.proofs += 1;
            match is_absent(subject).await {
                Ok(true) => _ = proven.insert(subject.clone()),
                Ok(false) => {
                    self.counters.contradictions += 1;
                    self.contradicted.insert(subject.clone(), now + ABSENCE_RECHECK_DELAY);
                    tracing::debug!(%subject, "keeping an object that is missing from a list but exists");
                    return Some(ClaimObstacle::Exists { subject: subject.clone() });
                }
                Err(error) => {
                    self.counters.failures += 1;
                    tracing::warn!(%error, %subject, "keeping an object: cannot read whether it exists");
                    return Some(ClaimObstacle::Unknown {
                        subject: subject.clone(),
                        error: error.to_string(),
                    });
                }
            }
        }
        None
    }

    fn suspend(&mut self, key: (&'static str, SubjectClass), suspension: ClassSuspension) {
        let ClassSuspension { missing, referenced, claims, reason, .. } = &suspension;
        if !self.suspensions.contains_key(&key) {
            tracing::warn!(
                scope = key.0,
                class = %key.1,
                missing,
                referenced,
                claims,
                reason,
                "a large share of objects is missing from lists; nothing is released or deleted until every absence is confirmed"
            );
        }
        self.suspensions.insert(key, suspension);
    }

    fn resume(&mut self, key: (&'static str, SubjectClass)) {
        if self.suspensions.remove(&key).is_some() {
            tracing::info!(scope = key.0, class = %key.1, "absences are confirmed or objects are back; releases and deletions resume");
        }
    }
}

fn choose_earlier(one: Option<MonotonicTime>, other: Option<MonotonicTime>) -> Option<MonotonicTime> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests;
