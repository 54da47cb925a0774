//! Authentication by the front proxy's headers, a client certificate or a token, and authorization by
//! SubjectAccessReview.

use crate::refusal::Refusal;
use crate::request::Request;
use crate::resources::{GROUP, Served};
use crate::reviews::Reviews;
use crate::selectors::Selection;
use crate::tiers::{InTier, Lacking, no_tier};
use crate::trust::{Current, Shown};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use sha2::Digest as _;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tortie_model::kinds::TIER_LABEL;
use tortie_store::orchestrator::{Decision, Orchestrator, User, Wish};

/// How long responses of kube-apiserver are cached.
const LIFETIME: Duration = Duration::from_secs(10);
const MOST_ANSWERS: usize = 8_192;
const MOST_TOKENS: usize = 1_024;
/// Longer tokens are rejected without a review.
const MAX_TOKEN: usize = 32 << 10;
/// Members of this group may do everything in every cluster.
const MASTERS: &str = "system:masters";
const EVERYBODY: &str = "system:authenticated";
const NOBODY: &str = "system:unauthenticated";

pub struct Access {
    orchestrator: Orchestrator,
    trust: Arc<Current>,
    tokens: Reviews<[u8; 32], Option<User>>,
    decisions: Reviews<(User, Wish), Decision>,
}

impl Access {
    pub fn new(orchestrator: Orchestrator, trust: Arc<Current>) -> Access {
        Access {
            orchestrator,
            trust,
            tokens: Reviews::new(LIFETIME, MOST_TOKENS),
            decisions: Reviews::new(LIFETIME, MOST_ANSWERS),
        }
    }

    pub fn orchestrator(&self) -> &Orchestrator {
        &self.orchestrator
    }

    /// Returns the user of a request. Identity headers count only if the front proxy sends them.
    pub async fn authenticate(
        &self,
        chain: &[CertificateDer<'static>],
        headers: &HeaderMap,
    ) -> Result<User, Refusal> {
        let trust = self.trust.get();
        let shown = if chain.is_empty() { None } else { trust.judge(chain, UnixTime::now()) };
        if shown == Some(Shown::Proxy)
            && let Some(user) = trust.user_in(headers)
        {
            return Ok(known(user));
        }
        if let Some(token) = bearer(headers) {
            return self.owner_of(token).await?.map(known).ok_or_else(Refusal::unauthorized);
        }
        match shown {
            Some(Shown::Client(user)) => Ok(known(user)),
            _ => Ok(User {
                name: "system:anonymous".to_owned(),
                groups: vec![NOBODY.to_owned()],
                ..User::default()
            }),
        }
    }

    async fn owner_of(&self, token: &str) -> Result<Option<User>, Refusal> {
        if token.len() > MAX_TOKEN {
            return Ok(None);
        }
        // Only hashes of tokens are kept.
        let key: [u8; 32] = sha2::Sha256::digest(token.as_bytes()).into();
        if let Some(known) = self.tokens.get(&key, Instant::now()) {
            return Ok(known);
        }
        let user = self.orchestrator.review_token(token).await;
        let user = user.map_err(|error| Refusal::unavailable(error.to_string()))?;
        self.tokens.put(key, user.clone(), Instant::now());
        Ok(user)
    }

    pub async fn decide(&self, user: &User, wish: Wish) -> Result<Decision, Refusal> {
        if user.groups.iter().any(|group| group == MASTERS) {
            return Ok(Decision { allowed: true, reason: String::new() });
        }
        let key = (user.clone(), wish);
        if let Some(known) = self.decisions.get(&key, Instant::now()) {
            return Ok(known);
        }
        let decision = self.orchestrator.review_access(user, &key.1).await;
        let decision = decision.map_err(|error| Refusal::unavailable(error.to_string()))?;
        self.decisions.put(key, decision.clone(), Instant::now());
        Ok(decision)
    }

    pub async fn authorise_path(&self, user: &User, verb: &str, path: &str) -> Result<(), Refusal> {
        let wish = Wish::Path { verb: verb.to_owned(), path: path.to_owned() };
        let decision = self.decide(user, wish).await?;
        match decision.allowed {
            true => Ok(()),
            false => Err(Refusal::forbidden_path(format!(
                "forbidden: User {:?} cannot {verb} path {path:?}{}",
                user.name,
                because(&decision)
            ))),
        }
    }

    /// Checks the RBAC rules of the cluster. Tier permissions are checked in addition.
    pub async fn authorise(&self, user: &User, request: &Request) -> Result<(), Refusal> {
        let wish = Wish::Resource {
            verb: request.verb.name().to_owned(),
            group: GROUP.to_owned(),
            resource: request.served.kind.plural().to_owned(),
            subresource: if request.is_status { "status".to_owned() } else { String::new() },
            namespace: request.namespace.clone(),
            name: request.name.clone(),
        };
        let decision = self.decide(user, wish).await?;
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
            because(&decision)
        );
        Err(Refusal::forbidden(request.served, &request.name, &why))
    }

    /// Returns the tier permission that the user lacks, if any.
    async fn lacking(&self, user: &User, wanted: &InTier<'_>) -> Result<Option<Lacking>, Refusal> {
        if !self.decide(user, wanted.see_tier()).await?.allowed {
            return Ok(Some(Lacking::Tier));
        }
        for wish in wanted.touch_policies() {
            if self.decide(user, wish).await?.allowed {
                return Ok(None);
            }
        }
        Ok(Some(Lacking::Policies))
    }

    /// Checks the user's permission on policies of a tier. Kinds without tiers always pass.
    pub async fn authorise_tier(&self, user: &User, wanted: &InTier<'_>) -> Result<(), Refusal> {
        if !wanted.served.is_tiered() {
            return Ok(());
        }
        match self.lacking(user, wanted).await? {
            None => Ok(()),
            Some(lacking) => {
                Err(Refusal::forbidden(wanted.served, wanted.name, &wanted.refusal(&user.name, lacking)))
            }
        }
    }

    /// Restricts a selection to tiers that the user may see. The user must have permission on all tiers that the
    /// selection names.
    pub async fn narrow(
        &self,
        user: &User,
        request: &Request,
        selection: &mut Selection,
        tiers: Vec<String>,
    ) -> Result<(), Refusal> {
        let served: Served = request.served;
        if let Some(named) = selection.named_tiers(TIER_LABEL) {
            for tier in &named {
                self.authorise_tier(user, &within(request, tier)).await?;
            }
            selection.tiers = Some(named);
            return Ok(());
        }
        let mut allowed = BTreeSet::new();
        for tier in tiers {
            if self.lacking(user, &within(request, &tier)).await?.is_none() {
                allowed.insert(tier);
            }
        }
        if allowed.is_empty() {
            return Err(Refusal::forbidden(served, "", &no_tier(&user.name, request.verb, served)));
        }
        selection.tiers = Some(allowed);
        Ok(())
    }
}

/// Returns the access request for one tier of a collection.
fn within<'a>(request: &'a Request, tier: &'a str) -> InTier<'a> {
    InTier { served: request.served, verb: request.verb, namespace: &request.namespace, name: "", tier }
}

/// Adds `system:authenticated` to the groups of an authenticated user.
fn known(mut user: User) -> User {
    if !user.groups.iter().any(|group| group == EVERYBODY || group == NOBODY) {
        user.groups.push(EVERYBODY.to_owned());
    }
    user
}

fn because(decision: &Decision) -> String {
    match decision.reason.as_str() {
        "" => String::new(),
        reason => format!(": {reason}"),
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = text.trim().split_once(' ')?;
    Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
}
