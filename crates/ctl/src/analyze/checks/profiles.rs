//! Finds endpoints that refer to a missing profile: traffic that no policy decides is denied.

use super::super::AnalyzedCluster;
use super::super::finding::AnalysisFinding;
use tortie_model::{Kind, Resource};

pub fn find_missing_profiles(subject: &AnalyzedCluster) -> Vec<AnalysisFinding> {
    let mut findings = Vec::new();
    for resource in subject.cluster.resources() {
        let profiles = match resource {
            Resource::WorkloadEndpoint(endpoint) => &endpoint.spec.profiles,
            Resource::HostEndpoint(endpoint) => &endpoint.spec.profiles,
            _ => continue,
        };
        for profile in profiles.iter().filter(|name| !subject.cluster.has(Kind::Profile, name)) {
            findings.push(AnalysisFinding {
                object: resource.identify(),
                check: "profile-missing",
                reason: format!("it names profile {profile}, which does not exist"),
                advice: "Create the profile, or take it out of the endpoint: what no policy of the endpoint \
                                 decides is denied until then."
                    .to_owned(),
            });
        }
    }
    findings
}
