//! Authentication by the front proxy's headers, a client certificate or a token, and authorization by
//! SubjectAccessReview.

use crate::refusal::{StatusError, StatusReason};
use crate::request::ObjectRequest;
use crate::resources::{GROUP, ServedKind};
use crate::reviews::ReviewCache;
use crate::selectors::ObjectSelection;
use crate::tiers::{MissingTierPermission, TierAccess, explain_no_tier};
use crate::trust::{CertificateHolder, CurrentTrust};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use sha2::Digest as _;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tortie_model::kinds::TIER_LABEL;
use tortie_store::orchestrator::{AccessDecision, AccessRequest, KubernetesUser, OrchestratorClient};

/// How long responses of kube-apiserver are cached.
const REVIEW_CACHE_LIFETIME: Duration = Duration::from_secs(10);
const MAX_CACHED_DECISIONS: usize = 8_192;
const MAX_CACHED_TOKENS: usize = 1_024;
/// Longer tokens are rejected without a review.
const MAX_TOKEN_BYTES: usize = 32 << 10;
/// Members of this group may do everything in every cluster.
const MASTERS_GROUP: &str = "system:masters";
const AUTHENTICATED_GROUP: &str = "system:authenticated";
const UNAUTHENTICATED_GROUP: &str = "system:unauthenticated";

pub struct AccessControl {
    orchestrator: OrchestratorClient,
    trust: Arc<CurrentTrust>,
    tokens: ReviewCache<[u8; 32], Option<KubernetesUser>>,
    decisions: ReviewCache<(KubernetesUser, AccessRequest), AccessDecision>,
}

impl AccessControl {
    pub fn new(orchestrator: OrchestratorClient, trust: Arc<CurrentTrust>) -> AccessControl {
        AccessControl {
            orchestrator,
            trust,
            tokens: ReviewCache::new(REVIEW_CACHE_LIFETIME, MAX_CACHED_TOKENS),
            decisions: ReviewCache::new(REVIEW_CACHE_LIFETIME, MAX_CACHED_DECISIONS),
        }
    }

    pub fn orchestrator(&self) -> &OrchestratorClient {
        &self.orchestrator
    }

    /// Returns the user of a request. Identity headers count only if the front proxy sends them.
    pub async fn authenticate(
        &self,
        chain: &[CertificateDer<'static>],
        headers: &HeaderMap,
    ) -> Result<KubernetesUser, StatusError> {
        let trust = self.trust.get();
        let holder = if chain.is_empty() { None } else { trust.identify_holder(chain, UnixTime::now()) };
        if holder == Some(CertificateHolder::Proxy)
            && let Some(user) = trust.read_user(headers)
        {
            return Ok(add_authenticated_group(user));
        }
        if let Some(token) = find_bearer_token(headers) {
            return self
                .review_token(token)
                .await?
                .map(add_authenticated_group)
                .ok_or_else(|| StatusError::new(StatusReason::Unauthorized, "Unauthorized"));
        }
        match holder {
            Some(CertificateHolder::Client(user)) => Ok(add_authenticated_group(user)),
            _ => Ok(KubernetesUser {
                name: "system:anonymous".to_owned(),
                groups: vec![UNAUTHENTICATED_GROUP.to_owned()],
                ..KubernetesUser::default()
            }),
        }
    }

    async fn review_token(&self, token: &str) -> Result<Option<KubernetesUser>, StatusError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Ok(None);
        }
        // Only hashes of tokens are kept.
        let key: [u8; 32] = sha2::Sha256::digest(token.as_bytes()).into();
        if let Some(known) = self.tokens.get(&key, Instant::now()) {
            return Ok(known);
        }
        let user = self.orchestrator.review_token(token).await;
        let user = user.map_err(|error| StatusError::unavailable(error.to_string()))?;
        self.tokens.put(key, user.clone(), Instant::now());
        Ok(user)
    }

    pub async fn decide(
        &self,
        user: &KubernetesUser,
        access: AccessRequest,
    ) -> Result<AccessDecision, StatusError> {
        if user.groups.iter().any(|group| group == MASTERS_GROUP) {
            return Ok(AccessDecision { allowed: true, reason: String::new() });
        }
        let key = (user.clone(), access);
        if let Some(known) = self.decisions.get(&key, Instant::now()) {
            return Ok(known);
        }
        let decision = self.orchestrator.review_access(user, &key.1).await;
        let decision = decision.map_err(|error| StatusError::unavailable(error.to_string()))?;
        self.decisions.put(key, decision.clone(), Instant::now());
        Ok(decision)
    }

    pub async fn authorise_path(
        &self,
        user: &KubernetesUser,
        verb: &str,
        path: &str,
    ) -> Result<(), StatusError> {
        let access = AccessRequest::Path { verb: verb.to_owned(), path: path.to_owned() };
        let decision = self.decide(user, access).await?;
        if decision.allowed {
            return Ok(());
        }
        let reason = format_reason(&decision);
        let why = format!("forbidden: User {:?} cannot {verb} path {path:?}{reason}", user.name);
        Err(StatusError::new(StatusReason::Forbidden, why))
    }

    /// Checks the RBAC rules of the cluster. Tier permissions are checked in addition.
    pub async fn authorise(&self, user: &KubernetesUser, request: &ObjectRequest) -> Result<(), StatusError> {
        let access = AccessRequest::Resource {
            verb: request.verb.name().to_owned(),
            group: GROUP.to_owned(),
            resource: request.served.kind.plural().to_owned(),
            subresource: if request.is_status { "status".to_owned() } else { String::new() },
            namespace: request.namespace.clone(),
            name: request.name.clone(),
        };
        let decision = self.decide(user, access).await?;
        if decision.allowed {
            return Ok(());
        }
        let scope = match request.namespace.as_str() {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace {namespace:?}"),
        };
        let why = format!(
            "User {:?} cannot {} resource {:?} in API group {GROUP:?} {scope}{}",
            user.name,
            request.verb.name(),
            request.served.kind.plural(),
            format_reason(&decision)
        );
        Err(StatusError::forbidden(request.served, &request.name, &why))
    }

    /// Returns the tier permission that the user lacks, if any.
    async fn find_missing_permission(
        &self,
        user: &KubernetesUser,
        wanted: &TierAccess<'_>,
    ) -> Result<Option<MissingTierPermission>, StatusError> {
        if !self.decide(user, wanted.request_tier()).await?.allowed {
            return Ok(Some(MissingTierPermission::Tier));
        }
        for access in wanted.request_policies() {
            if self.decide(user, access).await?.allowed {
                return Ok(None);
            }
        }
        Ok(Some(MissingTierPermission::Policies))
    }

    /// Checks the user's permission on policies of a tier. Kinds without tiers always pass.
    pub async fn authorise_tier(
        &self,
        user: &KubernetesUser,
        wanted: &TierAccess<'_>,
    ) -> Result<(), StatusError> {
        if !wanted.served.is_tiered() {
            return Ok(());
        }
        match self.find_missing_permission(user, wanted).await? {
            None => Ok(()),
            Some(missing) => Err(StatusError::forbidden(
                wanted.served,
                wanted.name,
                &wanted.explain_refusal(&user.name, missing),
            )),
        }
    }

    /// Restricts a selection to tiers that the user may see. The user must have permission on all tiers that the
    /// selection names.
    pub async fn restrict_to_tiers(
        &self,
        user: &KubernetesUser,
        request: &ObjectRequest,
        selection: &mut ObjectSelection,
        tiers: Vec<String>,
    ) -> Result<(), StatusError> {
        let served: ServedKind = request.served;
        if let Some(named) = selection.named_tiers(TIER_LABEL) {
            for tier in &named {
                self.authorise_tier(user, &build_tier_access(request, tier)).await?;
            }
            selection.tiers = Some(named);
            return Ok(());
        }
        let mut allowed = BTreeSet::new();
        for tier in tiers {
            if self.find_missing_permission(user, &build_tier_access(request, &tier)).await?.is_none() {
                allowed.insert(tier);
            }
        }
        if allowed.is_empty() {
            return Err(StatusError::forbidden(
                served,
                "",
                &explain_no_tier(&user.name, request.verb, served),
            ));
        }
        selection.tiers = Some(allowed);
        Ok(())
    }
}

/// Returns the access request for one tier of a collection.
fn build_tier_access<'a>(request: &'a ObjectRequest, tier: &'a str) -> TierAccess<'a> {
    TierAccess { served: request.served, verb: request.verb, namespace: &request.namespace, name: "", tier }
}

/// Adds `system:authenticated` to the groups of an authenticated user.
fn add_authenticated_group(mut user: KubernetesUser) -> KubernetesUser {
    if !user.groups.iter().any(|group| group == AUTHENTICATED_GROUP || group == UNAUTHENTICATED_GROUP) {
        user.groups.push(AUTHENTICATED_GROUP.to_owned());
    }
    user
}

fn format_reason(decision: &AccessDecision) -> String {
    match decision.reason.as_str() {
        "" => String::new(),
        reason => format!(": {reason}"),
    }
}

fn find_bearer_token(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = text.trim().split_once(' ')?;
    Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
}
