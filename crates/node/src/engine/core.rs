//! The decisions of the node, without I/O and without a clock: events in, actions out.
//!
//! Until the whole datastore has been read once, nothing is touched in the kernel; while the datastore is silent,
//! everything stays as it is. What CNI has attached, only CNI takes away.

use super::event::{Action, Event, Failure, LearntRoute, Refusal, WaiterId};
use super::waiters::{Waiters, Wanted};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::time::Duration;
use tortie_compute::Compute;
use tortie_model::{FeedEvent, Key, Kind, Resource, Revision, Value};
use tortie_plan::bgp::Install;
use tortie_plan::{Learnt, Migration, NextHop, Plan, Settings, Update, WorkloadId};

/// Between attempts to start the dataplane.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Core {
    compute: Compute,
    plan: Plan,
    dataplane: Dataplane,
    in_sync: bool,
    datastore_ready: bool,
    /// The datastore has deleted an endpoint that is held, or had not got it from the beginning.
    lost: bool,
    /// Endpoints that are held and that the datastore has not spoken of, until all has been heard once.
    unheard: HashSet<Key>,
    /// Endpoints of live attachments: only CNI takes them away.
    held: HashSet<Key>,
    /// Endpoints that CNI wrote or deleted and that the datastore's watch has not delivered yet: older news is stale.
    written: BTreeMap<Key, Written>,
    waiters: Waiters,
    /// From BGP, not yet given to the dataplane.
    learnt: Vec<Update>,
    advertisements: Advertisements,
    /// Until when routes to machines that have come here are better than normal.
    settling: BTreeMap<WorkloadId, Duration>,
    planned: u64,
}

/// What the dataplane does.
#[derive(Debug)]
enum Dataplane {
    Down { retry_at: Duration },
    Starting(Settings),
    Idle(Settings),
    Applying(Settings),
}

/// What CNI did to an endpoint in the datastore.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Written {
    Put(Revision),
    /// The last revision at which it was there.
    Deleted(Revision),
}

impl Written {
    /// Where revisions have no order nothing is outdated: what the datastore says next puts it right.
    fn outdates_put(&self, put: &Revision) -> bool {
        match self {
            Written::Put(own) => put != own && put.is_at_or_before(own) == Some(true),
            Written::Deleted(last) => put.is_at_or_before(last) == Some(true),
        }
    }

    fn outdates_deletion(&self, deletion: &Revision) -> bool {
        matches!(self, Written::Put(own) if deletion.is_at_or_before(own) == Some(true))
    }
}

/// What has changed in the plan since BGP last heard of it.
#[derive(Debug, Default)]
struct Advertisements {
    workloads: BTreeSet<WorkloadId>,
    configuration: bool,
    /// BGP knows the plan as a whole; from now on, changes do.
    in_sync: bool,
}

/// An attachment that lives from a former run, with its endpoint as far as the journal knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    pub key: Key,
    pub endpoint: Option<Value>,
}

impl Core {
    /// The plan begins with what lives here: an endpoint that the datastore has lost keeps its network.
    pub fn new(mut compute: Compute, held: Vec<Held>) -> Core {
        for Held { key, endpoint } in &held {
            if let Some(endpoint) = endpoint {
                compute.put(key, endpoint);
            }
        }
        let held: HashSet<Key> = held.into_iter().map(|held| held.key).collect();
        Core {
            compute,
            plan: Plan::default(),
            dataplane: Dataplane::Down { retry_at: Duration::ZERO },
            in_sync: false,
            datastore_ready: true,
            lost: false,
            unheard: held.clone(),
            held,
            written: BTreeMap::new(),
            waiters: Waiters::default(),
            learnt: Vec::new(),
            advertisements: Advertisements::default(),
            settling: BTreeMap::new(),
            planned: 0,
        }
    }

    pub fn compute(&self) -> &Compute {
        &self.compute
    }

    /// What the kernel shall have.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Nobody has locked the datastore, for a migration or the like.
    pub fn is_datastore_ready(&self) -> bool {
        self.datastore_ready
    }

    /// Whether the datastore has lost the endpoint of a running container since the last call.
    pub fn take_lost(&mut self) -> bool {
        std::mem::take(&mut self.lost)
    }

    /// The dataplane works; until it is done, no turn takes effect.
    pub fn is_busy(&self) -> bool {
        matches!(self.dataplane, Dataplane::Starting(_) | Dataplane::Applying(_))
    }

    /// How many changes of the plan there have been.
    pub fn planned(&self) -> u64 {
        self.planned
    }

    /// `now` is the time since some fixed moment.
    pub fn handle(&mut self, now: Duration, event: Event) -> Vec<Action> {
        match event {
            Event::Feed(feed) => self.feed(feed),
            Event::Attach { waiter, key, value, profile } => {
                self.attach(waiter, key, &value, profile, now);
            }
            Event::Detach { waiter, key, revision } => self.detach(waiter, key, revision, now),
            Event::Hold { waiter, key } => {
                self.held.insert(key);
                return vec![Action::Answer { waiter, outcome: Ok(()) }];
            }
            Event::Learnt { routes, complete } => {
                let install = self.plan.bgp.as_ref().map(|bgp| &bgp.install);
                self.learnt.extend(routes.into_iter().map(|route| learnt(route, install)));
                self.learnt.extend(complete.then_some(Update::LearntComplete));
            }
            Event::Announced(ids) => ids.iter().for_each(|id| self.compute.announced(id)),
            Event::Started => return self.started(),
            Event::Applied(failures) => return self.applied(&failures),
            Event::Stopped(reason) => return self.stopped(now, reason),
            Event::Turn => return self.turn(now),
        }
        Vec::new()
    }

    fn feed(&mut self, event: FeedEvent) {
        match event {
            FeedEvent::Put { key, value, revision } => {
                if let Value::Resource(Resource::ClusterInformation(information)) = &value {
                    self.datastore_ready = information.spec.datastore_ready.unwrap_or(true);
                }
                self.unheard.remove(&key);
                if !self.written.get(&key).is_some_and(|written| written.outdates_put(&revision)) {
                    self.written.remove(&key);
                    self.compute.put(&key, &value);
                }
            }
            FeedEvent::Delete { key, revision } => {
                if self.written.get(&key).is_some_and(|written| written.outdates_deletion(&revision)) {
                    return;
                }
                self.written.remove(&key);
                if let Key::Resource { kind: Kind::ClusterInformation, .. } = &key {
                    self.datastore_ready = true;
                }
                if self.held.contains(&key) {
                    self.lost = true;
                    tracing::warn!(
                        %key,
                        "the datastore lost the endpoint of a running container; the container keeps its network"
                    );
                } else {
                    self.compute.delete(&key);
                }
            }
            FeedEvent::InSync => {
                self.in_sync = true;
                self.lost |= !std::mem::take(&mut self.unheard).is_empty();
            }
            // Silence is not deletion: everything stays as it is.
            FeedEvent::ConnectionLost { .. } | FeedEvent::ConnectionBack { .. } => {}
            FeedEvent::Unreadable { key, text, reason } => self.compute.put_unreadable(&key, &text, &reason),
        }
    }

    fn attach(&mut self, id: WaiterId, key: Key, value: &Value, profile: Option<String>, now: Duration) {
        if self.waiters.contains(id) {
            return;
        }
        let (workload, revision) = match value {
            Value::Resource(Resource::WorkloadEndpoint(endpoint)) => {
                let workload =
                    tortie_compute::local_workload(endpoint, tortie_compute::Permissions::ALL).ok();
                (workload.map(|(id, _)| id), endpoint.metadata.resource_version.parse().ok())
            }
            _ => (None, None),
        };
        match revision {
            Some(revision) => self.written.insert(key.clone(), Written::Put(revision)),
            None => self.written.remove(&key),
        };
        self.compute.put(&key, value);
        self.held.insert(key.clone());
        self.waiters.insert(id, Wanted::Attached { key, workload, profile }, now);
    }

    fn detach(&mut self, id: WaiterId, key: Key, revision: Option<Revision>, now: Duration) {
        if self.waiters.contains(id) {
            return;
        }
        self.held.remove(&key);
        self.compute.delete(&key);
        if let Some(revision) = revision {
            self.written.insert(key, Written::Deleted(revision));
        }
        self.waiters.insert(id, Wanted::Detached, now);
    }

    fn turn(&mut self, now: Duration) -> Vec<Action> {
        if self.is_busy() {
            return Vec::new();
        }
        for (id, _) in self.settling.extract_if(.., |_, until| *until <= now) {
            self.compute.settled(&id);
        }
        let mut updates = self.compute.flush();
        self.note_settling(now, &updates);
        updates.append(&mut self.learnt);
        self.planned += u64::try_from(updates.len()).unwrap_or_default();
        for update in &updates {
            self.advertisements.note(update);
            self.plan.apply(update.clone());
        }
        if !self.in_sync {
            return answers(self.waiters.drain(), &Refusal::NotInSync);
        }
        let settings = self.compute.settings();
        match &self.dataplane {
            Dataplane::Idle(current) if current == settings => self.apply(now, None, updates),
            Dataplane::Idle(current) if !needs_restart(current, settings) => {
                let settings = Some(Box::new(settings.clone()));
                self.apply(now, settings, updates)
            }
            Dataplane::Down { retry_at } if now < *retry_at => Vec::new(),
            _ => {
                self.dataplane = Dataplane::Starting(settings.clone());
                vec![Action::Start {
                    settings: Box::new(settings.clone()),
                    plan: Box::new(self.plan.clone()),
                }]
            }
        }
    }

    fn note_settling(&mut self, now: Duration, updates: &[Update]) {
        let until = now + self.compute.parameters().live_migration_route_convergence_time;
        for update in updates {
            match update {
                Update::Workload(id, Some(workload)) if workload.migration == Migration::Settling => {
                    self.settling.entry(id.clone()).or_insert(until);
                }
                Update::Workload(id, _) => {
                    self.settling.remove(id);
                }
                _ => {}
            }
        }
    }

    /// Gives the changes to the dataplane, and with them what somebody waits for: the kernel may have refused it before
    /// anybody waited, so that it is no change any more.
    fn apply(
        &mut self,
        now: Duration,
        settings: Option<Box<Settings>>,
        mut updates: Vec<Update>,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        let compute = &self.compute;
        for (id, wanted) in self.waiters.ready(now, |profile| compute.has_profile(profile)) {
            match self.awaited(&wanted, &updates) {
                Ok(again) => {
                    updates.extend(again);
                    self.waiters.put_in_batch(id);
                }
                Err(refusal) => {
                    self.waiters.remove(id);
                    actions.push(Action::Answer { waiter: id, outcome: Err(refusal) });
                }
            }
        }
        if updates.is_empty() && settings.is_none() {
            actions.extend(self.finish(&[]));
            return actions;
        }
        self.dataplane = match std::mem::replace(&mut self.dataplane, Dataplane::Down { retry_at: now }) {
            Dataplane::Idle(current) => Dataplane::Applying(settings.as_deref().cloned().unwrap_or(current)),
            other => other,
        };
        actions.push(Action::Apply { settings, updates });
        actions
    }

    /// What has to be sent to the dataplane again so that it reports on the awaited workload.
    fn awaited(&self, wanted: &Wanted, updates: &[Update]) -> Result<Option<Update>, Refusal> {
        let Wanted::Attached { key, workload, .. } = wanted else { return Ok(None) };
        let planned = workload.as_ref().and_then(|id| Some((id, self.plan.workloads.get(id)?)));
        let Some((id, workload)) = planned else {
            let problem = self.compute.problems().remove(&key.to_string());
            return Err(Refusal::Endpoint(problem.unwrap_or_else(|| "it was removed meanwhile".to_owned())));
        };
        if let Some(reason) = self.compute.floating_refusal(key) {
            return Err(Refusal::Endpoint(reason));
        }
        let is_sent = |update: &Update| matches!(update, Update::Workload(other, _) if other == id);
        match updates.iter().any(is_sent) {
            true => Ok(None),
            false => Ok(Some(Update::Workload(id.clone(), Some(workload.clone())))),
        }
    }

    fn started(&mut self) -> Vec<Action> {
        let Dataplane::Starting(settings) = &self.dataplane else { return Vec::new() };
        // Whoever waits is answered by the next batch, which tells what the kernel refused.
        self.dataplane = Dataplane::Idle(settings.clone());
        self.advertise().into_iter().collect()
    }

    fn applied(&mut self, failures: &[Failure]) -> Vec<Action> {
        let Dataplane::Applying(settings) = &self.dataplane else { return Vec::new() };
        self.dataplane = Dataplane::Idle(settings.clone());
        self.finish(failures)
    }

    fn stopped(&mut self, now: Duration, reason: String) -> Vec<Action> {
        let retry_at = match self.dataplane {
            // It ran: it may well run again.
            Dataplane::Idle(_) | Dataplane::Applying(_) => now,
            Dataplane::Starting(_) => now + RETRY,
            Dataplane::Down { .. } => return Vec::new(),
        };
        self.dataplane = Dataplane::Down { retry_at };
        answers(self.waiters.drain(), &Refusal::Dataplane(reason))
    }

    /// A batch is in the kernel, but for the failures.
    fn finish(&mut self, failures: &[Failure]) -> Vec<Action> {
        let answers = self.waiters.finish(failures).into_iter();
        let answers = answers.map(|(waiter, outcome)| Action::Answer { waiter, outcome });
        self.advertise().into_iter().chain(answers).collect()
    }

    fn advertise(&mut self) -> Option<Action> {
        let updates = self.advertisements.take(&self.plan);
        (!updates.is_empty()).then_some(Action::Advertise(updates))
    }
}

impl Advertisements {
    fn note(&mut self, update: &Update) {
        match update {
            Update::Bgp(_) => self.configuration = true,
            Update::Workload(id, _) => {
                self.workloads.insert(id.clone());
            }
            _ => {}
        }
    }

    /// Nothing where the node does not speak BGP: then no plan ever says how.
    fn take(&mut self, plan: &Plan) -> Vec<Update> {
        let Some(bgp) = &plan.bgp else { return Vec::new() };
        if !std::mem::replace(&mut self.in_sync, true) {
            self.configuration = true;
            self.workloads.extend(plan.workloads.keys().cloned());
        }
        let configuration = std::mem::take(&mut self.configuration).then(|| Update::Bgp(bgp.clone()));
        let workloads = std::mem::take(&mut self.workloads).into_iter().map(|id| {
            let workload = plan.workloads.get(&id).cloned();
            Update::Workload(id, workload)
        });
        configuration.into_iter().chain(workloads).collect()
    }
}

/// Whether a dataplane that runs cannot be given these settings.
fn needs_restart(current: &Settings, wanted: &Settings) -> bool {
    current.policy.cut_denied_flows != wanted.policy.cut_denied_flows
}

/// Next hops that are behind a tunnel are reached through it. When that changes, BGP says all its routes again.
fn learnt(LearntRoute { destination, route }: LearntRoute, install: Option<&Install>) -> Update {
    let hop = |address: IpAddr| {
        let tunnel = install.and_then(|install| install.tunnel(&destination, address));
        NextHop { address, tunnel }
    };
    let route = route.map(|route| Learnt {
        next_hops: route.next_hops.into_iter().map(hop).collect(),
        metric: route.metric,
    });
    Update::Learnt(destination, route)
}

fn answers(waiters: Vec<WaiterId>, refusal: &Refusal) -> Vec<Action> {
    let answer = |waiter| Action::Answer { waiter, outcome: Err(refusal.clone()) };
    waiters.into_iter().map(answer).collect()
}
