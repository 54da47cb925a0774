//! The conformance cases of policy on real nodes: resources written with calicoctl, real packets between real pods, and
//! the kernel's own counters for what decided.

mod cluster;
mod kernel;
mod kube;
mod packets;
mod place;
mod sending;

use cluster::Cluster;
use tortie_testkit::CalicoGroup;
use tortie_testkit::conformance::{Case, cases};

// All of them are shown by packets. Two things around them are not: the line that case 6 has the kernel log, as kernels
// print nothing of what namespaces log (that the packet met the rule is seen by its counter); and that the nodes have
// heard of the staged policies of cases 7 and 8 when packets are sent, as they show nothing of them.
#[test]
fn every_conformance_case() {
    run_all(None);
}

#[test]
fn every_conformance_case_on_the_kubernetes_api() {
    run_all(Some(CalicoGroup::V3));
}

#[test]
fn every_conformance_case_on_the_kubernetes_api_in_the_older_group() {
    run_all(Some(CalicoGroup::V1));
}

fn run_all(kubernetes: Option<CalicoGroup>) {
    let cases = cases();
    assert!(cases.iter().map(|case| case.number).eq(1..=30));
    let mut cluster = Cluster::new(&cases, kubernetes);
    cases.iter().for_each(|case| run(&mut cluster, case));
    cluster.nothing_came_late();
    cluster.replay(cases.len() as u64);
}

fn run(cluster: &mut Cluster, case: &Case) {
    for step in &case.steps {
        cluster.write(&step.applied(), &step.deleted());
        cluster.send(case, &step.packets);
    }
    cluster.restore();
}
