//! The kernel rejects the whole table: no single object is blamed, the failure concerns every workload, and the first
//! successful write clears it.

use crate::namespace::{id, start};
use crate::plans::{open_plan, reaches, two_pods};
use std::time::Duration;
use tortie_dataplane::{AffectedWorkloads, DataplaneReport, KernelObject, ReportReceiver};
use tortie_testkit::TableOwner;

async fn reported(
    reports: &mut ReportReceiver,
    wanted: impl Fn(&DataplaneReport) -> bool,
) -> DataplaneReport {
    let next = async {
        loop {
            let report = reports.next().await.unwrap();
            if wanted(&report) {
                return report;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), next).await.expect("it is reported")
}

#[tokio::test(flavor = "multi_thread")]
async fn table_rejection_blames_no_object_and_heals() {
    let (node, one, _two) = two_pods().await;
    let owner = TableOwner::new(&node);
    let (dataplane, mut reports) = start(&node).await;
    let outcome = dataplane.replace(open_plan()).await.unwrap();
    let named: Vec<&KernelObject> = outcome.failures.iter().map(|failure| &failure.object).collect();
    assert_eq!(named, [&KernelObject::Table { name: "inet tortie" }], "{:?}", outcome.failures);
    assert_eq!(outcome.failures[0].concerns, AffectedWorkloads::Everything);
    assert!(outcome.failures[0].concerns(&id("one")));
    let not_enforced = |report: &DataplaneReport| matches!(report, DataplaneReport::NotEnforced(Some(_)));
    reported(&mut reports, not_enforced).await;

    drop(owner);
    reported(&mut reports, |report| matches!(report, DataplaneReport::NotEnforced(None))).await;
    let outcome = dataplane.apply(Vec::new()).await.unwrap();
    assert_eq!(outcome.failures, [], "nothing is left of it");
    assert!(reaches(&one, "10.65.0.3") && reaches(&one, "fd80:65::3"));
}
