//! The policy conformance cases on real nodes: resources written with calicoctl, real packets between real pods, and
//! kernel counters to identify the deciding rule.

mod cluster;
mod kernel;
mod kube;
mod packets;
mod place;
mod sending;

use cluster::ConformanceCluster;
use tortie_testkit::CalicoGroup;
use tortie_testkit::conformance::{ConformanceCase, cases};

// All cases are verified by packets, with two exceptions. Case 6: the kernel does not print log lines of other
// network namespaces, so only the counter proves that the packet matched the rule. Cases 7 and 8: staged policies
// have no visible effect, so the test cannot know whether the nodes have received them when packets are sent.
#[test]
fn every_conformance_case() {
    run_all(None);
}

#[test]
fn every_conformance_case_on_the_kubernetes_api() {
    run_all(Some(CalicoGroup::V3));
}

#[test]
fn every_conformance_case_in_the_older_group() {
    run_all(Some(CalicoGroup::V1));
}

fn run_all(kubernetes: Option<CalicoGroup>) {
    let cases = cases();
    assert!(cases.iter().map(|case| case.number).eq(1..=32));
    let mut cluster = ConformanceCluster::new(&cases, kubernetes);
    cases.iter().for_each(|case| run(&mut cluster, case));
    cluster.nothing_came_late();
    cluster.replay(cases.len() as u64);
}

fn run(cluster: &mut ConformanceCluster, case: &ConformanceCase) {
    for step in &case.steps {
        cluster.write(&step.applied(), &step.deleted());
        cluster.send(case, &step.packets);
    }
    cluster.restore();
}
