//! Further networks of a container. As in Calico they share the interface, the addresses and the endpoint of the
//! first network, and the endpoint gets one more profile. The profiles of a Kubernetes pod follow from its namespace,
//! so this is only for other runtimes.
//!
//! Leaving a further network removes only its profile. Leaving the first network removes everything.

use super::add::{AddOutcome, convert_engine_error, select_profile};
use super::identity::ContainerIdentity;
use super::ipam::convert_store_error;
use super::request::CniRequest;
use super::service::{CniService, MAX_ENDPOINT_WRITE_ATTEMPTS};
use crate::attachment_reclaimer;
use crate::journal::{AttachmentId, AttachmentPhase, AttachmentRecord, JoinedNetwork};
use tortie_cni::{CniError, code};
use tortie_model::kinds::WorkloadEndpointSpec;
use tortie_model::{Resource, StoreValue};
use tortie_store::StoreError;

/// Maximum number of further networks of one container.
const MAX_FURTHER_NETWORKS: usize = 64;

impl CniService {
    /// Returns the attachment of the same container to another network, if the ADD has to share it.
    pub(super) fn find_shareable_record(
        &self,
        request: &CniRequest,
        identity: &ContainerIdentity,
    ) -> Option<AttachmentRecord> {
        // In chained mode the network has its own interface.
        if identity.orchestrator == "k8s" || request.config.previous.is_some() {
            return None;
        }
        let id = CniService::record_id(request);
        let fits = |record: &AttachmentRecord| {
            record.id.container_id == id.container_id
                && record.phase == AttachmentPhase::Live
                && record.is_in(&request.netns)
                && !record.network.is_empty()
                && record.network != request.config.name
                && record.endpoint.is_some()
                && !record.chained
        };
        match self.find_shared_record(&id, &request.config.name).or_else(|| self.journal.get(&id)) {
            Some(record) => Some(record).filter(fits),
            None => self.journal.find(fits),
        }
    }

    /// Returns the attachment that a further network of a container shares.
    pub(super) fn find_shared_record(&self, id: &AttachmentId, network: &str) -> Option<AttachmentRecord> {
        self.journal.find(|record| {
            record.id.container_id == id.container_id && record.joined(network, &id.ifname).is_some()
        })
    }

    /// Returns whether the attachment belongs to another network than the request.
    pub(super) fn is_of_another_network(request: &CniRequest, record: &AttachmentRecord) -> bool {
        record.network != request.config.name
            && !record.network.is_empty()
            && record.phase == AttachmentPhase::Live
            && !record.chained
            && ContainerIdentity::from_request(request).orchestrator != "k8s"
    }

    pub(super) async fn join_network(
        &self,
        request: &CniRequest,
        identity: &ContainerIdentity,
        mut record: AttachmentRecord,
    ) -> Result<AddOutcome, CniError> {
        let network = &request.config.name;
        let ifname = &request.ifname;
        let result = record.result.clone();
        let result = result.ok_or_else(|| CniError::new(code::FAILED, "the record has no result"))?;
        let live = record.joined(network, ifname).is_some_and(|joined| joined.phase == AttachmentPhase::Live);
        if live && self.is_intact(request, &record).await {
            return Ok(AddOutcome { result, is_new: false });
        }
        let profile = select_profile(request, identity);
        let awaited = self.ensure_profile(request, identity).await?;
        let had_profile = match record.joined.iter().find(|joined| joined.profile == profile) {
            Some(joined) => joined.had_profile,
            None => self.read_profiles(&record).await?.contains(&profile),
        };
        record.joined.retain(|joined| joined.network != *network || joined.ifname != *ifname);
        if record.joined.len() >= MAX_FURTHER_NETWORKS {
            let message = format!("the container is in {} networks already", record.joined.len() + 1);
            return Err(CniError::new(code::FAILED, message));
        }
        record.joined.push(JoinedNetwork {
            network: network.clone(),
            ifname: ifname.clone(),
            phase: AttachmentPhase::Adding,
            profile: profile.clone(),
            had_profile,
        });
        self.write_record(&record, true)?;
        crate::failpoint::hit("join-journalled").await;
        let programming = self.change_profiles(
            &record,
            |profiles| {
                if !profiles.contains(&profile) {
                    profiles.push(profile.clone());
                }
            },
            awaited,
        );
        let outcome = self.within_deadline(programming).await;
        let outcome = outcome.and_then(|workload| {
            let mut record = AttachmentRecord { workload: Some(workload), ..record.clone() };
            set_phase(&mut record, network, ifname, AttachmentPhase::Live);
            self.write_record(&record, false)
        });
        if let Err(error) = outcome {
            if let Err(error) = self.leave_network(&record, network, ifname).await {
                tracing::warn!(%error, container = request.container_id, "cannot roll back a failed ADD; retrying");
            }
            return Err(error);
        }
        Ok(AddOutcome { result, is_new: true })
    }

    /// Leaves a further network.
    pub(super) async fn leave_network(
        &self,
        record: &AttachmentRecord,
        network: &str,
        ifname: &str,
    ) -> Result<(), CniError> {
        // The whole attachment is being removed.
        if record.phase != AttachmentPhase::Live {
            return Ok(());
        }
        let Some(joined) = record.joined(network, ifname).cloned() else { return Ok(()) };
        let mut record = record.clone();
        set_phase(&mut record, network, ifname, AttachmentPhase::Removing);
        self.write_record(&record, false)?;
        crate::failpoint::hit("part-journalled").await;
        record
            .joined
            .retain(|other| *other != JoinedNetwork { phase: AttachmentPhase::Removing, ..joined.clone() });
        let is_shared = record.joined.iter().any(|other| other.profile == joined.profile);
        if record.endpoint.is_some() && !joined.had_profile && !is_shared {
            let removed = self.change_profiles(
                &record,
                |profiles| profiles.retain(|profile| *profile != joined.profile),
                None,
            );
            record.workload = Some(removed.await?);
        }
        self.write_record(&record, false)
    }

    /// Leaves those further networks of a container that match `over`.
    pub(super) async fn leave_networks_where(
        &self,
        id: &AttachmentId,
        over: impl Fn(&JoinedNetwork) -> bool,
    ) -> Result<(), CniError> {
        if !self.journal.get(id).is_some_and(|record| record.joined.iter().any(&over)) {
            return Ok(());
        }
        let _lock = self.lock(&id.container_id).await;
        while let Some(record) = self.journal.get(id).filter(|record| record.phase == AttachmentPhase::Live)
            && let Some(joined) = record.joined.iter().find(|joined| over(joined))
        {
            self.leave_network(&record, &joined.network, &joined.ifname).await?;
        }
        Ok(())
    }

    async fn read_profiles(&self, record: &AttachmentRecord) -> Result<Vec<String>, CniError> {
        let Some((namespace, name)) = &record.endpoint else { return Ok(Vec::new()) };
        match self.resources.get_as::<WorkloadEndpointSpec>(namespace, name).await {
            Ok(endpoint) => Ok(endpoint.spec.profiles),
            Err(StoreError::DoesNotExist { .. }) => {
                let known = attachment_reclaimer::endpoint_of(record, &self.node);
                Ok(known.map(|endpoint| endpoint.spec.profiles).unwrap_or_default())
            }
            Err(error) => Err(convert_store_error(error)),
        }
    }

    /// Changes the profiles of a live endpoint. Returns the stored endpoint once the change is in force.
    async fn change_profiles(
        &self,
        record: &AttachmentRecord,
        change: impl Fn(&mut Vec<String>),
        awaited: Option<String>,
    ) -> Result<serde_json::Value, CniError> {
        let lost = || CniError::new(code::FAILED, "the record of the container has no endpoint");
        let (key, (namespace, name)) = record.endpoint_key().zip(record.endpoint.clone()).ok_or_else(lost)?;
        let mut last = None;
        for _ in 0..MAX_ENDPOINT_WRITE_ATTEMPTS {
            let written = match self.resources.get_as::<WorkloadEndpointSpec>(&namespace, &name).await {
                Ok(mut endpoint) => {
                    let before = endpoint.spec.profiles.clone();
                    change(&mut endpoint.spec.profiles);
                    if endpoint.spec.profiles == before {
                        Ok(Resource::from(endpoint))
                    } else {
                        self.resources.update(endpoint.into()).await
                    }
                }
                // The container is live, so an endpoint that the datastore lost is written again.
                Err(StoreError::DoesNotExist { .. }) => {
                    let mut endpoint =
                        attachment_reclaimer::endpoint_of(record, &self.node).ok_or_else(lost)?;
                    change(&mut endpoint.spec.profiles);
                    self.resources.create(endpoint.into()).await
                }
                Err(error) => Err(error),
            };
            match written {
                Ok(stored) => {
                    crate::failpoint::hit("join-stored").await;
                    let workload = stored.to_value();
                    let programmed = self.engine.attach(key, StoreValue::Resource(stored), awaited).await;
                    return programmed.map(|()| workload).map_err(convert_engine_error);
                }
                Err(error) if error.is_lost_race() => last = Some(error),
                Err(error) => return Err(convert_store_error(error)),
            }
        }
        let reason = last.map(|error| error.to_string()).unwrap_or_default();
        Err(CniError::new(code::TRY_AGAIN, "the endpoint keeps changing while it is written").with(reason))
    }
}

fn set_phase(record: &mut AttachmentRecord, network: &str, ifname: &str, phase: AttachmentPhase) {
    for joined in &mut record.joined {
        if joined.network == network && joined.ifname == ifname {
            joined.phase = phase;
        }
    }
}
