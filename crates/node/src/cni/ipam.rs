//! Calico IPAM, for the plugin `calico` and for `calico-ipam` called on its own.

use super::identity::{self, ContainerIdentity};
use super::request::CniRequest;
use super::result::{CniResult, ResultIp, ResultRoute};
use super::service::CniService;
use ipnet::IpNet;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::net::IpAddr;
use tortie_cni::{CniError, code};
use tortie_ipam::pool::AddressUse;
use tortie_ipam::{AddressHolder, IpamError, SpecificRequest};
use tortie_model::kinds::IPPoolSpec;

impl CniService {
    /// Handles ADD of `calico-ipam`. A repeated request returns the addresses that the container already has.
    pub(super) async fn handle_ipam_add(&self, request: &CniRequest) -> Result<CniResult, CniError> {
        self.assign_addresses(request, Some(1)).await
    }

    pub(super) async fn handle_ipam_del(&self, request: &CniRequest) -> Result<(), CniError> {
        let identity = ContainerIdentity::from_request(request);
        self.release_addresses(&identity::derive_handle(&request.config.name, &request.container_id)).await?;
        self.release_addresses(&identity::derive_legacy_handle(&identity, &request.container_id)).await
    }

    /// Assigns addresses to a container. The result has the prefix length of their blocks and a route for each.
    pub(super) async fn assign_addresses(
        &self,
        request: &CniRequest,
        max_per_handle: Option<u32>,
    ) -> Result<CniResult, CniError> {
        let holder = self.describe_holder(request);
        if let Some(text) = &request.args.ip {
            let address: IpAddr = text.parse().map_err(|_| {
                CniError::new(code::ENVIRONMENT, format!("CNI_ARGS: IP={text} is no address"))
            })?;
            let mut wanted = SpecificRequest::new(address, holder);
            wanted.intended = Some(AddressUse::Workload);
            wanted.max_per_handle = max_per_handle;
            let address = self.allocator.assign_address(&wanted).await.map_err(convert_ipam_error)?;
            return Ok(build_result(&[address]));
        }
        let ipam = &request.config.ipam;
        let v4 = u32::from(ipam.assign_ipv4.as_deref() != Some("false"));
        let v6 = u32::from(ipam.assign_ipv6.as_deref() == Some("true"));
        let mut wanted = tortie_ipam::AssignRequest::new(holder, v4, v6);
        wanted.v4_pools = self.resolve_pools(&ipam.ipv4_pools, true).await?;
        wanted.v6_pools = self.resolve_pools(&ipam.ipv6_pools, false).await?;
        wanted.max_per_handle = max_per_handle;
        wanted.namespace_labels = request.namespace_labels.clone();
        let handle = identity::derive_handle(&request.config.name, &request.container_id);
        let assigned = match self.allocator.auto_assign(&wanted).await {
            Ok(assigned) => assigned,
            Err(error) => {
                if error.assigned.addresses().next().is_some() {
                    self.release_addresses(&handle).await?;
                }
                return Err(convert_ipam_error(error.error));
            }
        };
        for family in [&assigned.v4, &assigned.v6] {
            if let Some(shortfall) = family.shortfall() {
                if assigned.addresses().next().is_some() {
                    self.release_addresses(&handle).await?;
                }
                let message = format!("failed to request IPv{} addresses: {shortfall}", family.version);
                return Err(CniError::new(code::FAILED, message));
            }
        }
        Ok(build_result(&assigned.addresses().collect::<Vec<_>>()))
    }

    /// Releases all addresses of a handle. A missing handle is not an error.
    pub(super) async fn release_addresses(&self, handle: &str) -> Result<(), CniError> {
        match self.allocator.release_by_handle(handle).await {
            Ok(_) | Err(IpamError::DoesNotExist { .. }) => Ok(()),
            Err(error) => Err(convert_ipam_error(error)),
        }
    }

    fn describe_holder(&self, request: &CniRequest) -> AddressHolder {
        use tortie_ipam::owner::attribute;
        let identity = ContainerIdentity::from_request(request);
        let mut attributes = BTreeMap::from([
            (attribute::NODE_ATTRIBUTE.to_owned(), self.node.clone()),
            (
                attribute::TIMESTAMP_ATTRIBUTE.to_owned(),
                Timestamp::now().strftime("%Y-%m-%d %H:%M:%S%.f +0000 UTC").to_string(),
            ),
        ]);
        if !identity.pod.is_empty() {
            attributes.insert(attribute::POD_ATTRIBUTE.to_owned(), identity.pod);
            attributes.insert(attribute::NAMESPACE_ATTRIBUTE.to_owned(), identity.namespace);
        }
        let handle = identity::derive_handle(&request.config.name, &request.container_id);
        AddressHolder::new(Some(&handle), attributes)
    }

    /// Resolves pools given by CIDR or by name.
    async fn resolve_pools(&self, listed: &[String], v4: bool) -> Result<Vec<IpNet>, CniError> {
        let mut pools = Vec::new();
        for text in listed {
            let bad = |reason: String| {
                CniError::new(code::NETWORK_CONFIG, format!("error parsing pool {text:?}: {reason}"))
            };
            let net = match text.parse::<IpNet>() {
                Ok(net) => net,
                Err(_) => {
                    let pool = self.resources.get_as::<IPPoolSpec>("", text).await;
                    let pool = pool.map_err(|error| bad(error.to_string()))?;
                    pool.spec.cidr.parse().map_err(|_| bad("its CIDR cannot be read".to_owned()))?
                }
            };
            if net.addr().is_ipv4() != v4 {
                let family = if v4 { "IPv4" } else { "IPv6" };
                return Err(bad(format!("{:?} isn't a {family} address", net.addr().to_string())));
            }
            pools.push(net.trunc());
        }
        Ok(pools)
    }
}

fn build_result(addresses: &[IpNet]) -> CniResult {
    CniResult {
        ips: addresses.iter().map(|net| ResultIp { address: *net, gateway: None, interface: None }).collect(),
        routes: addresses.iter().map(|net| ResultRoute { dst: *net, gateway: None }).collect(),
        ..CniResult::default()
    }
}

/// Maps an IPAM error to a CNI error. Only an unavailable datastore or a write conflict is worth a retry.
pub(super) fn convert_ipam_error(error: IpamError) -> CniError {
    match error {
        IpamError::Store(error) => convert_store_error(error),
        IpamError::TooManyRetries => CniError::new(code::TRY_AGAIN, error.to_string()),
        error => CniError::new(code::FAILED, error.to_string()),
    }
}

pub(super) fn convert_store_error(error: tortie_store::StoreError) -> CniError {
    let code = match &error {
        tortie_store::StoreError::Conflict { .. } => code::TRY_AGAIN,
        error if error.is_outage() => code::TRY_AGAIN,
        _ => code::FAILED,
    };
    CniError::new(code, error.to_string())
}
