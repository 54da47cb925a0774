//! The CNI CHECK command: compares an attachment with the result of its ADD.

use super::request::CniRequest;
use super::result::CniResult;
use super::service::CniService;
use crate::journal::{AttachmentPhase, AttachmentRecord};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use tortie_cni::{CniError, code};
use tortie_dataplane::pod::{self, PodSearch};
use tortie_model::kinds::WorkloadEndpointSpec;

impl CniService {
    pub(super) async fn check(&self, request: &CniRequest) -> Result<(), CniError> {
        let id = CniService::record_id(request);
        let shared = self.find_shared_record(&id, &request.config.name);
        let own =
            || self.journal.get(&id).filter(|record| !CniService::is_of_another_network(request, record));
        let Some(record) = shared.or_else(own).filter(|record| record.phase == AttachmentPhase::Live) else {
            return Err(CniError::new(code::UNKNOWN_CONTAINER, "this interface was not attached here")
                .with(format!("container {} interface {}", request.container_id, request.ifname)));
        };
        let wrong = self.list_differences(request, &record).await;
        if wrong.is_empty() {
            return Ok(());
        }
        Err(CniError::new(code::FAILED, "the attachment is not as it was").with(wrong.join("; ")))
    }

    /// Returns whether a repeated ADD can be answered with the previous result.
    pub(super) async fn is_intact(&self, request: &CniRequest, record: &AttachmentRecord) -> bool {
        let wrong = self.list_differences(request, record).await;
        if !wrong.is_empty() {
            tracing::info!(
                container = request.container_id,
                wrong = wrong.join("; "),
                "the attachment differs from its ADD; attaching the container again"
            );
        }
        wrong.is_empty()
    }

    async fn list_differences(&self, request: &CniRequest, record: &AttachmentRecord) -> Vec<String> {
        let mut wrong = Vec::new();
        let Some(result) = &record.result else { return vec!["the record has no result".to_owned()] };
        if let Some(previous) = &request.config.previous {
            match CniResult::parse(previous) {
                Ok(previous) if collect_addresses(&previous) == collect_addresses(result) => {}
                Ok(_) => wrong.push("prevResult has other addresses than were given".to_owned()),
                Err(error) => wrong.push(format!("prevResult: {error}")),
            }
        }
        let joined = record.joined(&request.config.name, &request.ifname);
        if let Some((namespace, name)) = &record.endpoint {
            match self.resources.get_as::<WorkloadEndpointSpec>(namespace, name).await {
                Ok(endpoint) => {
                    let stored = endpoint.spec.ip_networks.iter();
                    let stored: BTreeSet<IpAddr> =
                        stored.filter_map(|net| net.split('/').next()?.parse().ok()).collect();
                    if stored != collect_addresses(result) {
                        wrong.push("the endpoint in the store has other addresses".to_owned());
                    }
                    if let Some(joined) = joined.filter(|it| !endpoint.spec.profiles.contains(&it.profile)) {
                        wrong.push(format!("the endpoint has lost the profile {}", joined.profile));
                    }
                }
                Err(error) => wrong.push(error.to_string()),
            }
        }
        if record.chained || joined.is_some() {
            // The other plugin, or the network that the container joined first, is responsible for the rest.
            return wrong;
        }
        if record.adopted {
            // Calico versions differ in settings and routes, so only the interface pair and the addresses are
            // compared.
            let search = PodSearch {
                host_interface: record.host_interface.clone(),
                container_interface: record.id.ifname.clone(),
                addresses: collect_addresses(result).into_iter().collect(),
            };
            match pod::is_wired(&self.host, Path::new(&request.netns), &search).await {
                Ok(true) => {}
                Ok(false) => {
                    wrong.push(format!("{} does not lead into the container", record.host_interface))
                }
                Err(error) => wrong.push(error.to_string()),
            }
            return wrong;
        }
        match self.build_attach_request(request, record, result, None) {
            Ok(mut attach) => {
                attach.mtu = result.interfaces.get(1).map(|i| i.mtu).filter(|mtu| *mtu != 0);
                if let Err(mut differences) = pod::check(&self.host, &attach).await {
                    wrong.append(&mut differences);
                }
            }
            Err(error) => wrong.push(error.to_string()),
        }
        wrong
    }
}

fn collect_addresses(result: &CniResult) -> BTreeSet<IpAddr> {
    result.ips.iter().map(|ip| ip.address.addr()).collect()
}
