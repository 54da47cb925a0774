//! Which workloads have a live proxy, as streams begin and end.

use super::*;
use tortie_plan::{NodePlan, WorkloadPolicy};

struct HubFixture {
    hub: SyncHub,
    _dir: tempfile::TempDir,
}

fn workload() -> WorkloadId {
    WorkloadId { orchestrator: "k8s".into(), workload: "shop/web-0".into(), endpoint: "eth0".into() }
}

fn credentials(uid: &str) -> WorkloadCredentials {
    WorkloadCredentials { uid: uid.to_owned(), workload: workload() }
}

impl HubFixture {
    fn new(with_endpoint: bool) -> HubFixture {
        HubFixture::after_restart(&LiveWorkloads::new(), with_endpoint)
    }

    /// Creates a hub whose previous daemon recorded these workloads.
    fn after_restart(recorded: &LiveWorkloads, with_endpoint: bool) -> HubFixture {
        let dir = tempfile::tempdir().unwrap();
        let record = LiveRecord::new(dir.path().join("http-proxies.json"));
        record.write(recorded);
        let node = Arc::new(NodeState::new("n1"));
        let fixture = HubFixture { hub: SyncHub::new(EngineHandle::channel().0, record, node), _dir: dir };
        let mut plan = NodePlan::default();
        if with_endpoint {
            plan.workload_policies.insert(workload(), WorkloadPolicy::default());
        }
        fixture.hub.apply_change(PlanChange::Resync(Box::new(plan)));
        fixture
    }

    fn put_endpoint(&self, endpoint: Option<WorkloadPolicy>) {
        self.hub.apply_change(PlanChange::Updates(vec![PlanUpdate::WorkloadPolicy(workload(), endpoint)]));
    }

    /// Sends all messages that are ready, as the stream of a client does.
    fn send_all(&self, id: SubscriberId) {
        for message in self.hub.take_messages(id).unwrap() {
            self.hub.record_sent(id, &message);
        }
    }

    fn is_live(&self) -> bool {
        self.hub.lock().live.contains_key(&workload())
    }
}

#[test]
fn a_client_without_endpoint_is_not_live() {
    let fixture = HubFixture::new(false);
    let (id, _) = fixture.hub.join(&credentials("a"));
    fixture.send_all(id);
    assert!(!fixture.is_live(), "in sync, but there is no workload");
    fixture.put_endpoint(Some(WorkloadPolicy::default()));
    assert!(!fixture.is_live(), "the client does not have the endpoint");
    fixture.send_all(id);
    assert!(fixture.is_live());
}

#[test]
fn a_recreated_workload_is_not_live_at_once() {
    let fixture = HubFixture::new(true);
    let (id, _) = fixture.hub.join(&credentials("a"));
    let stale = fixture.hub.take_messages(id).unwrap();
    stale.iter().for_each(|message| fixture.hub.record_sent(id, message));
    assert!(fixture.is_live());
    fixture.put_endpoint(None);
    assert!(!fixture.is_live());
    // A message about the old endpoint was still on its way.
    stale.iter().for_each(|message| fixture.hub.record_sent(id, message));
    assert!(!fixture.is_live());
    // The new endpoint is equal to the old one, and the client has not received the removal.
    fixture.put_endpoint(Some(WorkloadPolicy::default()));
    assert!(!fixture.is_live());
    fixture.send_all(id);
    assert!(fixture.is_live());
    fixture.hub.apply_change(PlanChange::Resync(Box::default()));
    assert!(!fixture.is_live(), "the plan that replaces everything does not have it");
}

#[test]
fn a_new_stream_inherits_liveness_until_in_sync() {
    let fixture = HubFixture::new(true);
    let (first, _) = fixture.hub.join(&credentials("a"));
    fixture.send_all(first);
    let (second, _) = fixture.hub.join(&credentials("a"));
    assert!(fixture.is_live());
    fixture.hub.leave(first);
    assert!(fixture.is_live(), "the earlier stream was replaced");
    fixture.send_all(second);
    assert!(fixture.is_live());
    fixture.hub.leave(second);
    assert!(!fixture.is_live());
}

#[test]
fn only_the_same_pod_stays_live_after_restarts() {
    let recorded = LiveWorkloads::from([(workload(), "a".to_owned())]);
    let is_restored = |present: &[&str]| {
        let fixture = HubFixture::after_restart(&recorded, true);
        assert!(fixture.hub.lock().restored.contains_key(&workload()));
        let present = present.iter().map(|uid| ((*uid).to_owned(), credentials(uid))).collect();
        fixture.hub.retain_restored(&present);
        let restored = fixture.hub.lock().restored.contains_key(&workload());
        fixture.hub.write_record();
        assert_eq!(fixture.hub.record.read().contains_key(&workload()), restored);
        restored
    };
    assert!(is_restored(&["a"]) && is_restored(&["a", "b"]));
    assert!(!is_restored(&["b"]), "another pod has the name");
    assert!(!is_restored(&[]), "the volume is gone");
    let fixture = HubFixture::after_restart(&recorded, false);
    assert!(fixture.hub.lock().restored.is_empty(), "the endpoint is gone");
}
