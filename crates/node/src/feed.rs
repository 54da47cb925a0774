//! Selects the source of this node's feed: a hub if the settings name one (the Typha parameters), else the datastore.

use std::sync::Arc;
use tortie_compute::NodeParameters;
use tortie_http::liveness::Liveness;
use tortie_hub::certificates::NodeCertificates;
use tortie_hub::client::{self, HubAddressError, HubClientOptions, HubLocations, HubService};
use tortie_hub::tls::{ClientTls, HubTlsIdentity, IncompleteTlsIdentity};
use tortie_model::KeyRange;
use tortie_store::StoreClient;
use tortie_store::config::KubernetesTarget;
use tortie_sync::Feed;

/// Environment variable with the name of the Secret that holds the certificate which hubs issue for nodes.
pub const HUB_SECRET_VARIABLE: &str = "TORTIE_HUB_SECRET";

/// Invalid settings for the connection to a hub.
#[derive(Debug, thiserror::Error)]
pub enum HubSettingsError {
    #[error("TyphaAddr (FELIX_TYPHAADDR): {0}")]
    Address(#[from] HubAddressError),
    #[error(
        "TyphaK8sServiceName (FELIX_TYPHAK8SSERVICENAME): {0:?} is a service of Kubernetes, and no Kubernetes is configured"
    )]
    Service(String),
    #[error("TyphaKeyFile, TyphaCertFile, TyphaCAFile, TyphaCN, TyphaURISAN: {0}")]
    Identity(#[from] IncompleteTlsIdentity),
    #[error("{HUB_SECRET_VARIABLE}: {0:?} is a Secret of Kubernetes, and no Kubernetes is configured")]
    Secret(String),
    #[error(transparent)]
    Tls(#[from] tortie_tls::TlsError),
}

/// The node's identity and connections that a feed needs.
pub struct FeedContext<'a> {
    pub store: &'a StoreClient,
    pub node: &'a str,
    /// Connection to Kubernetes, if there is one, and the name of this node's Node object.
    pub kubernetes: Option<&'a KubernetesTarget>,
    pub kubernetes_node: &'a str,
    /// Name of the Secret with the certificate that hubs issue for nodes; may be empty.
    pub certificate_secret: &'a str,
    pub liveness: &'a Liveness,
}

/// Follows the hub or the datastore.
pub fn follow(
    p: &NodeParameters,
    context: &FeedContext<'_>,
    interests: Vec<KeyRange>,
) -> Result<Feed, HubSettingsError> {
    let Some(hubs) = locate_hubs(p, context)? else {
        let watches = context.liveness.part("datastore-watch");
        return Ok(tortie_sync::follow(context.store, interests, move || watches.beat()));
    };
    let mut options = HubClientOptions::new(context.node, hubs);
    // Zero would mean no timeout, so the default applies.
    for (limit, set) in
        [(&mut options.read, p.typha_read_timeout), (&mut options.write, p.typha_write_timeout)]
    {
        if !set.is_zero() {
            *limit = set;
        }
    }
    let identity = HubTlsIdentity::new(
        &p.typha_key_file,
        &p.typha_cert_file,
        &p.typha_ca_file,
        &p.typha_cn,
        &p.typha_uri_san,
    )?;
    options.tls = match (identity, context.certificate_secret, context.kubernetes) {
        (Some(identity), _, _) => Some(Arc::new(ClientTls::new(identity)?)),
        (None, "", _) => None,
        (None, secret, Some(kubernetes)) => {
            let own = NodeCertificates::new(kubernetes.clone(), &p.typha_k8s_namespace, secret);
            Some(Arc::new(ClientTls::with_issued_certificate(own)))
        }
        (None, secret, None) => return Err(HubSettingsError::Secret(secret.to_owned())),
    };
    tracing::info!(hubs = ?options.hubs, "following a hub instead of the datastore");
    Ok(client::follow(options, interests))
}

fn locate_hubs(
    p: &NodeParameters,
    context: &FeedContext<'_>,
) -> Result<Option<HubLocations>, HubSettingsError> {
    if !p.typha_addr.is_empty() {
        return Ok(Some(HubLocations::parse(&p.typha_addr)?));
    }
    if p.typha_k8s_service_name.is_empty() {
        return Ok(None);
    }
    let name = p.typha_k8s_service_name.clone();
    let Some(kubernetes) = context.kubernetes.cloned() else { return Err(HubSettingsError::Service(name)) };
    let namespace = p.typha_k8s_namespace.clone();
    let node = context.kubernetes_node.to_owned();
    Ok(Some(HubLocations::Service(Box::new(HubService { kubernetes, namespace, name, node }))))
}
