//! Handles AdmissionReviews of kube-apiserver.

use super::review::{AdmissionOperation, AdmissionRequest};
use crate::access::AccessControl;
use crate::body::{BodyError, BodyReader};
use crate::metrics::ApiServerMetrics;
use crate::refusal::StatusError;
use crate::resources::{GROUP, ServedKind};
use crate::server::{
    ConnectionPeer, RequestHandler, build_metrics_response, build_response, build_text_response,
};
use crate::tiers::TierAccess;
use axum::body::Body;
use http::{Method, Request, Response, StatusCode};
use std::time::Instant;
use tokio::sync::{Semaphore, watch};
use tortie_model::{Kind, Resource};
use tortie_store::{ResourceClient, StoreError};

/// Maximum number of concurrent reviews.
pub const MAX_CONCURRENT_REVIEWS: usize = 400;
const JSON_CONTENT_TYPE: &str = "application/json";
/// Service accounts that may write ClusterInformation: Calico's names and ours.
const CLUSTER_INFORMATION_WRITERS: [&str; 5] =
    ["calico-node", "calico-kube-controllers", "calico-typha", "tortie-node", "tortie-controllers"];

pub struct WebhookHandler {
    pub access: AccessControl,
    pub resources: ResourceClient,
    /// Namespace of these service accounts.
    pub namespace: String,
    pub metrics: ApiServerMetrics,
    pub bodies: BodyReader,
    pub requests: Semaphore,
    /// Whether reviews require a client certificate. TLS has verified it.
    pub needs_certificate: bool,
    /// Whether a certificate exists, and whether the server is about to stop.
    pub certified: watch::Receiver<bool>,
    pub stopping: watch::Receiver<bool>,
}

impl WebhookHandler {
    fn check_readiness(&self) -> Response<Body> {
        if *self.stopping.borrow() {
            return build_plain_response(StatusCode::SERVICE_UNAVAILABLE, "stopping");
        }
        if !*self.certified.borrow() {
            return build_plain_response(StatusCode::SERVICE_UNAVAILABLE, "no certificate yet");
        }
        build_text_response(StatusCode::OK, "ok")
    }

    async fn review(&self, webhook: WebhookKind, content: Body, peer: &ConnectionPeer) -> Response<Body> {
        // Read before the review counts against the limit: a slow sender must not occupy a slot.
        let body = match self.bodies.read(content, &peer.source.to_string()).await {
            Ok(body) => body,
            Err(error) => return self.refuse_body(error),
        };
        let Ok(_room) = self.requests.try_acquire() else {
            self.metrics.count_refused("request");
            return build_plain_response(StatusCode::TOO_MANY_REQUESTS, "too many requests are being served");
        };
        let admission = match AdmissionRequest::parse(&body.bytes) {
            Ok(admission) => admission,
            Err(why) => {
                return build_plain_response(
                    StatusCode::BAD_REQUEST,
                    &format!("cannot parse the review: {why}"),
                );
            }
        };
        let verdict = match webhook {
            WebhookKind::TierRules => self.check_tier_rules(&admission).await,
            WebhookKind::ClusterInformation => self.check_writer(&admission),
        };
        if let Err(refusal) = &verdict {
            tracing::info!(
                user = admission.user_info.name,
                resource = admission.resource.resource,
                name = admission.object_name(),
                "rejected: {}",
                refusal.message
            );
        }
        build_response(
            StatusCode::OK,
            JSON_CONTENT_TYPE,
            Body::from(admission.build_response(verdict).to_string()),
        )
    }

    fn refuse_body(&self, error: BodyError) -> Response<Body> {
        let code = match error {
            BodyError::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            BodyError::TooSlow => StatusCode::REQUEST_TIMEOUT,
            BodyError::Broken => StatusCode::BAD_REQUEST,
            BodyError::NoRoom => {
                self.metrics.count_refused("body");
                StatusCode::TOO_MANY_REQUESTS
            }
        };
        build_plain_response(code, &error.to_string())
    }

    /// Checks that the user may write policies in the tier, and in the previous tier if it changes, and that the tier
    /// exists.
    async fn check_tier_rules(&self, admission: &AdmissionRequest) -> Result<(), StatusError> {
        let served = ServedKind::find(&admission.resource.resource)
            .filter(|served| served.is_tiered() && admission.resource.group == GROUP);
        let (Some(served), Some(verb)) = (served, admission.operation.verb()) else { return Ok(()) };
        let [old, new] = admission.tiers();
        for tier in [new, old.filter(|_| old != new)].into_iter().flatten() {
            let name = admission.object_name();
            let wanted = TierAccess { served, verb, namespace: &admission.namespace, name, tier };
            self.access.authorise_tier(&admission.user_info, &wanted).await?;
        }
        match new {
            Some(tier)
                if admission.operation != AdmissionOperation::Delete && !admission.is_being_deleted() =>
            {
                self.check_tier(tier).await
            }
            _ => Ok(()),
        }
    }

    async fn check_tier(&self, name: &str) -> Result<(), StatusError> {
        match self.resources.get(Kind::Tier, "", name).await {
            Ok(Resource::Tier(tier)) if tier.metadata.deletion_timestamp.is_some() => {
                Err(StatusError::unprocessable(format!("Tier {name:?} is being deleted")))
            }
            Ok(_) => Ok(()),
            Err(StoreError::DoesNotExist { .. }) => {
                Err(StatusError::unprocessable(format!("Tier {name:?} does not exist")))
            }
            Err(error) => Err(StatusError::unavailable(error.to_string())),
        }
    }

    /// Checks that a service account of nodes or controllers writes ClusterInformation; users may only read it.
    fn check_writer(&self, admission: &AdmissionRequest) -> Result<(), StatusError> {
        let user = admission.user_info.name.as_str();
        let own = CLUSTER_INFORMATION_WRITERS
            .map(|account| format!("system:serviceaccount:{}:{account}", self.namespace));
        if own.iter().any(|account| account == user) {
            return Ok(());
        }
        let message = format!("ClusterInformation is a read-only resource (user: {user})");
        Err(StatusError::method_not_allowed(&message))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WebhookKind {
    TierRules,
    ClusterInformation,
}

impl RequestHandler for WebhookHandler {
    async fn answer(&self, http: Request<Body>, peer: &ConnectionPeer) -> Response<Body> {
        let began = Instant::now();
        let (parts, content) = http.into_parts();
        let path = parts.uri.path();
        // The kubelet's probes have no certificate.
        if self.needs_certificate && peer.chain.is_empty() && path != "/readyz" {
            self.metrics.count_refused("client");
            return build_plain_response(StatusCode::UNAUTHORIZED, "a client certificate is required");
        }
        let (name, answer) = match (&parts.method, path) {
            (&Method::POST, "/rbac") => ("rbac", self.review(WebhookKind::TierRules, content, peer).await),
            (&Method::POST, "/cluster-info") => {
                ("cluster-info", self.review(WebhookKind::ClusterInformation, content, peer).await)
            }
            (&Method::GET, "/readyz") => return self.check_readiness(),
            (&Method::GET, "/metrics") => return build_metrics_response(self.metrics.encode()),
            (_, "/rbac" | "/cluster-info" | "/readyz" | "/metrics") => {
                return build_plain_response(
                    StatusCode::METHOD_NOT_ALLOWED,
                    "this method is not allowed here",
                );
            }
            _ => return build_plain_response(StatusCode::NOT_FOUND, "not found"),
        };
        self.metrics.answered("review", name, answer.status().as_u16(), began.elapsed());
        answer
    }

    fn count_closed(&self, connection: &'static str) {
        self.metrics.count_refused(connection);
    }
}

fn build_plain_response(code: StatusCode, text: &str) -> Response<Body> {
    build_text_response(code, format!("{text}\n"))
}
