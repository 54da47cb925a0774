//! Executes the verbs on objects for an authorized user.

use crate::access::AccessControl;
use crate::body;
use crate::deletion::{self, DeleteOptions, DeletionPlan};
use crate::patch::ObjectPatch;
use crate::refusal::{StatusError, StatusReason};
use crate::request::{ObjectRequest, RequestVerb};
use crate::resources::GROUP;
use crate::selectors::ObjectSelection;
use crate::storage::{ObjectList, ObjectStorage};
use crate::stored::StoredObject;
use crate::tiers::TierAccess;
use crate::workers::WorkerPool;
use crate::write::{self, PreparedWrite, WriteAuthor, WriteOutcome, WriteTarget};
use bytes::Bytes;
use serde_json::{Value, json};
use std::sync::Arc;
use tortie_model::{Kind, Resource, StoreKey};
use tortie_store::orchestrator::KubernetesUser;
use tortie_store::{StoreError, tier_of};

/// Maximum number of retries of a write without a resource version when other clients modify the object concurrently.
const MAX_WRITE_RETRIES: u32 = 4;
/// Characters of the suffix of generated names. Vowels and similar-looking characters are left out.
const SUFFIX_LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX_LENGTH: usize = 5;
const MAX_GENERATED_PREFIX: usize = 253 - SUFFIX_LENGTH;

/// The request to execute.
#[derive(Clone, Debug)]
pub struct VerbRequest {
    pub request: ObjectRequest,
    pub user: KubernetesUser,
    /// Field manager of the write.
    pub manager: String,
    pub content_type: String,
    pub body: Bytes,
}

/// Result of a request.
#[derive(Debug)]
pub enum VerbResponse {
    Object {
        object: Value,
        code: u16,
        warnings: Vec<String>,
    },
    List(ObjectList),
    /// The Status object of a successful request.
    Done(Value),
}

impl VerbResponse {
    /// Creates a response with an object and without warnings.
    fn from_object(object: Value) -> VerbResponse {
        VerbResponse::Object { object, code: 200, warnings: Vec::new() }
    }
}

#[derive(Clone, Copy)]
pub struct VerbExecutor<'a> {
    pub storage: &'a ObjectStorage,
    pub access: &'a AccessControl,
    pub workers: &'a WorkerPool,
}

impl VerbExecutor<'_> {
    /// Executes every verb except watch.
    pub async fn execute(self, call: &Arc<VerbRequest>) -> Result<VerbResponse, StatusError> {
        let request = &call.request;
        let is_write = !matches!(request.verb, RequestVerb::Get | RequestVerb::List | RequestVerb::Watch);
        if is_write && request.served.is_read_only() {
            return Err(StatusError::method_not_allowed(&format!(
                "{} is not supported on resources of kind {:?}",
                request.verb.name(),
                request.served.qualified_name()
            )));
        }
        match request.verb {
            RequestVerb::Get => self.get(call).await,
            RequestVerb::List | RequestVerb::Watch => self.list(call).await.map(VerbResponse::List),
            RequestVerb::Create => self.create(call).await,
            RequestVerb::Update => self.update(call).await,
            RequestVerb::Patch => self.patch(call).await,
            RequestVerb::Delete => self.delete(call).await,
            RequestVerb::DeleteCollection => self.delete_collection(call).await,
        }
    }

    async fn authorise_in_tier(
        self,
        call: &VerbRequest,
        verb: RequestVerb,
        name: &str,
        tier: &str,
    ) -> Result<(), StatusError> {
        let ObjectRequest { served, namespace, .. } = &call.request;
        let wanted = TierAccess { served: *served, verb, namespace, name, tier };
        self.access.authorise_tier(&call.user, &wanted).await
    }

    /// Returns the live object of a request, after checking the permission on its tier.
    async fn get_live(self, call: &VerbRequest) -> Result<Resource, StatusError> {
        let request = &call.request;
        let resource = self.storage.get(request.served, &request.namespace, &request.name).await?;
        if let Some(tier) = tier_of(&resource) {
            self.authorise_in_tier(call, request.verb, &request.name, tier).await?;
        }
        Ok(resource)
    }

    async fn get(self, call: &VerbRequest) -> Result<VerbResponse, StatusError> {
        self.get_live(call).await.map(|live| VerbResponse::from_object(live.to_value()))
    }

    /// Returns the selection of a request, restricted to the objects that the user may see.
    pub async fn selection(self, call: &VerbRequest) -> Result<ObjectSelection, StatusError> {
        let request = &call.request;
        let options = &request.options;
        let mut selection =
            ObjectSelection::parse(request.served, &options.label_selector, &options.field_selector)?;
        if request.served.is_tiered() {
            let tiers = self.storage.tier_names().await?;
            self.access.restrict_to_tiers(&call.user, request, &mut selection, tiers).await?;
        }
        Ok(selection)
    }

    async fn list(self, call: &VerbRequest) -> Result<ObjectList, StatusError> {
        let selection = self.selection(call).await?;
        let request = &call.request;
        self.storage.list(request.served, &request.namespace, &selection, &request.options).await
    }

    async fn create(self, call: &Arc<VerbRequest>) -> Result<VerbResponse, StatusError> {
        let task = call.clone();
        let prepared = self.workers.run(move || {
            let mut submitted = body::parse_body(&task.content_type, &task.body)?;
            generate_name(&mut submitted);
            let name = write::read_text_at(&submitted, "/metadata/name").to_owned();
            write::prepare_create(
                build_write_target(&task, &name),
                submitted,
                build_write_author(&task, &format_current_time()),
            )
        });
        self.insert(call, prepared.await?).await
    }

    async fn insert(self, call: &VerbRequest, prepared: PreparedWrite) -> Result<VerbResponse, StatusError> {
        let served = call.request.served;
        let PreparedWrite { resource, warnings } = prepared;
        let name = resource.metadata().name.clone();
        let tier = tier_of(&resource).map(str::to_owned);
        if let Some(tier) = &tier {
            // Server-side apply creates an object that does not exist.
            self.authorise_in_tier(call, call.request.verb, &name, tier).await?;
        }
        self.check_namespace(call).await?;
        let resources = self.storage.resources();
        let dry_run = call.request.options.dry_run;
        let outcome =
            if dry_run { resources.check_create(resource).await } else { resources.create(resource).await };
        let created = match outcome {
            Ok(created) => created,
            Err(error) => return Err(self.creation_refusal(call, &name, tier.as_deref(), error).await),
        };
        if dry_run {
            match self.storage.get(served, &call.request.namespace, &name).await {
                Ok(_) => return Err(StatusError::already_exists(served, &name)),
                Err(refusal) if refusal.reason == StatusReason::NotFound => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(VerbResponse::Object { object: created.to_value(), code: 201, warnings })
    }

    async fn creation_refusal(
        self,
        call: &VerbRequest,
        name: &str,
        tier: Option<&str>,
        error: StoreError,
    ) -> StatusError {
        let ObjectRequest { served, namespace, .. } = &call.request;
        // Kubernetes rejects writes to a namespace that is being deleted.
        if matches!(error, StoreError::Unauthorized(_))
            && served.kind.is_namespaced()
            && matches!(self.access.orchestrator().namespace_terminates(namespace).await, Ok(true))
        {
            return StatusError::forbidden(*served, name, &explain_terminating_namespace(namespace));
        }
        convert_creation_error(build_write_target(call, name), tier, error)
    }

    /// Checks that the namespace exists and is not terminating. If Kubernetes is the datastore, kube-apiserver checks
    /// this, except for dry runs.
    async fn check_namespace(self, call: &VerbRequest) -> Result<(), StatusError> {
        let ObjectRequest { served, namespace, .. } = &call.request;
        let is_unchecked = !self.storage.resources().client().capabilities().checks_namespaces;
        if !served.kind.is_namespaced() || !(is_unchecked || call.request.options.dry_run) {
            return Ok(());
        }
        match self.access.orchestrator().namespace_terminates(namespace).await {
            Ok(false) => Ok(()),
            Ok(true) => Err(StatusError::forbidden(*served, "", &explain_terminating_namespace(namespace))),
            Err(StoreError::DoesNotExist { .. }) => Err(StatusError::namespace_not_found(namespace)),
            Err(error) => Err(StatusError::unavailable(error.to_string())),
        }
    }

    async fn update(self, call: &Arc<VerbRequest>) -> Result<VerbResponse, StatusError> {
        let task = call.clone();
        let submitted = self.workers.run(move || body::parse_body(&task.content_type, &task.body)).await?;
        let live = self.get_live(call).await?;
        let task = call.clone();
        let before = live.to_value();
        let outcome = self.workers.run(move || {
            write::prepare_update(
                build_write_target(&task, &task.request.name),
                &before,
                submitted,
                build_write_author(&task, &format_current_time()),
                true,
            )
        });
        self.replace(call, &live, outcome.await?).await
    }

    async fn replace(
        self,
        call: &VerbRequest,
        live: &Resource,
        outcome: WriteOutcome,
    ) -> Result<VerbResponse, StatusError> {
        let request = &call.request;
        if outcome == WriteOutcome::Gone && !request.options.dry_run {
            self.storage.delete(request.served, live).await?;
        }
        let WriteOutcome::Changed(PreparedWrite { resource, warnings }) = outcome else {
            return Ok(VerbResponse::from_object(live.to_value()));
        };
        let tier = tier_of(&resource).map(str::to_owned);
        if let Some(tier) = &tier {
            self.authorise_in_tier(call, request.verb, &request.name, tier).await?;
        }
        let resources = self.storage.resources();
        let replaced = if request.options.dry_run {
            resources.check_update(resource).await
        } else {
            resources.update(resource).await
        };
        let replaced = match replaced {
            Ok(replaced) => replaced,
            Err(error) => return Err(convert_update_error(request, tier.as_deref(), error)),
        };
        Ok(VerbResponse::Object { object: replaced.to_value(), code: 200, warnings })
    }

    /// Applies a patch. After a concurrent change, a patch without a resource version is applied again to the current
    /// object.
    async fn patch(self, call: &Arc<VerbRequest>) -> Result<VerbResponse, StatusError> {
        let task = call.clone();
        let patch = self
            .workers
            .run(move || ObjectPatch::read(body::parse_media_type(&task.content_type), &task.body));
        let patch = Arc::new(patch.await?);
        let retries = if has_resource_version(&patch) { 0 } else { MAX_WRITE_RETRIES };
        for _ in 0..retries {
            match self.patch_once(call, &patch).await {
                Err(refusal) if refusal.reason == StatusReason::Modified => {}
                done => return done,
            }
        }
        self.patch_once(call, &patch).await
    }

    async fn patch_once(
        self,
        call: &Arc<VerbRequest>,
        patch: &Arc<ObjectPatch>,
    ) -> Result<VerbResponse, StatusError> {
        let live = match self.get_live(call).await {
            Ok(live) => Some(live),
            Err(refusal) if refusal.reason == StatusReason::NotFound && patch.creates() => None,
            Err(refusal) => return Err(refusal),
        };
        let before = live.as_ref().map(Resource::to_value);
        let task = call.clone();
        let patch = patch.clone();
        let outcome = self.workers.run(move || apply_patch(&task, &patch, before.as_ref())).await?;
        match (live, outcome) {
            (Some(live), outcome) => self.replace(call, &live, outcome).await,
            (None, WriteOutcome::Changed(prepared)) => self.insert(call, prepared).await,
            (None, _) => Err(StatusError::not_found(call.request.served, &call.request.name)),
        }
    }

    async fn delete(self, call: &VerbRequest) -> Result<VerbResponse, StatusError> {
        let request = &call.request;
        let options =
            DeleteOptions::read(&request.options.propagation_policy, request.options.dry_run, &call.body)?;
        let retries = if options.resource_version.is_empty() { MAX_WRITE_RETRIES } else { 0 };
        for _ in 0..retries {
            match self.delete_object(call, &self.get_live(call).await?, &options).await {
                Err(refusal) if refusal.reason == StatusReason::Modified => {}
                done => return done,
            }
        }
        self.delete_object(call, &self.get_live(call).await?, &options).await
    }

    async fn delete_object(
        self,
        call: &VerbRequest,
        live: &Resource,
        options: &DeleteOptions,
    ) -> Result<VerbResponse, StatusError> {
        let served = call.request.served;
        let name = &live.metadata().name;
        let object = live.to_value();
        options.check(served, &object)?;
        let resources = self.storage.resources();
        if served.kind == Kind::IPPool && !options.force {
            self.check_pool_unused(call, name).await?;
        }
        let plan = deletion::plan_deletion(&object, options.propagation, &format_current_time());
        if options.dry_run && plan == DeletionPlan::Now || matches!(plan, DeletionPlan::Later(_)) {
            // Reject a deletion now if it would be rejected once the finalizers are removed.
            let checked = resources.check_delete(served.kind, name).await;
            checked.map_err(|error| StatusError::from_store(served, name, error))?;
        }
        match plan {
            DeletionPlan::Now => {
                if !options.dry_run {
                    self.storage.delete(served, live).await?;
                }
                let details = json!({"name": name, "group": GROUP, "kind": served.kind.plural(), "uid": live.metadata().uid});
                Ok(VerbResponse::Done(
                    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}),
                ))
            }
            DeletionPlan::Waiting => Ok(VerbResponse::from_object(object)),
            DeletionPlan::Later(held) => {
                let resource = Resource::from_store(served.kind, held.clone())
                    .map_err(|error| StatusError::internal(error.to_string()))?;
                if options.dry_run {
                    return Ok(VerbResponse::from_object(held));
                }
                let updated = resources.update(resource).await;
                let updated = updated.map_err(|error| StatusError::from_store(served, name, error))?;
                Ok(VerbResponse::from_object(updated.to_value()))
            }
        }
    }

    /// Rejects the deletion of a pool in use: the workloads with its addresses would lose their traffic.
    async fn check_pool_unused(self, call: &VerbRequest, name: &str) -> Result<(), StatusError> {
        let served = call.request.served;
        let counted = self.storage.resources().count_pool_addresses(name).await;
        match counted.map_err(|error| StatusError::from_store(served, name, error))? {
            (_, 0) => Ok(()),
            (cidr, count) => {
                let why = format!(
                    "{count} addresses are assigned from {cidr}, and their traffic would be cut; remove the workloads \
                     first, or delete with --force"
                );
                Err(StatusError::forbidden(served, name, &why))
            }
        }
    }

    /// Deletes all selected objects. Objects that are deleted concurrently are skipped.
    async fn delete_collection(self, call: &Arc<VerbRequest>) -> Result<VerbResponse, StatusError> {
        let request = &call.request;
        let options =
            DeleteOptions::read(&request.options.propagation_policy, request.options.dry_run, &call.body)?;
        let selection = self.selection(call).await?;
        let listing = self.storage.list(request.served, &request.namespace, &selection, &request.options);
        let mut listed = listing.await?;
        let mut deleted: Vec<Arc<StoredObject>> = Vec::new();
        for object in std::mem::take(&mut listed.items) {
            let request = ObjectRequest {
                verb: RequestVerb::Delete,
                namespace: object.namespace.clone(),
                name: object.name.clone(),
                ..request.clone()
            };
            let live = match self.storage.get(request.served, &request.namespace, &request.name).await {
                Ok(live) => live,
                Err(refusal) if refusal.reason == StatusReason::NotFound => continue,
                Err(refusal) => return Err(refusal),
            };
            // Since it was listed, the object may have moved to a tier that the user may not see.
            if !selection.selects(&StoredObject::new(&live).subject()) {
                continue;
            }
            let call = VerbRequest { request, ..VerbRequest::clone(call) };
            match self.delete_object(&call, &live, &options).await {
                Ok(_) => deleted.push(object),
                Err(refusal) if refusal.reason == StatusReason::NotFound => {}
                Err(refusal) => return Err(refusal),
            }
        }
        listed.items = deleted;
        Ok(VerbResponse::List(listed))
    }

    /// Returns a receiver for tier changes. A tier change ends the watches of policies, because it may change which
    /// policies the user may see.
    pub async fn tier_changes(
        self,
        request: &ObjectRequest,
    ) -> Result<Option<tokio::sync::watch::Receiver<u64>>, StatusError> {
        if !request.served.is_tiered() {
            return Ok(None);
        }
        Ok(Some(self.storage.cache(Kind::Tier).await?.subscribe_changes()))
    }
}

/// Converts the error of a creation. If an object does not exist, it is the tier or the namespace, not the object to be
/// created.
fn convert_creation_error(target: WriteTarget<'_>, tier: Option<&str>, error: StoreError) -> StatusError {
    let tier = tier.map(|tier| StoreKey::resource(Kind::Tier, "", tier).to_string());
    match &error {
        StoreError::DoesNotExist { id, .. } if Some(id) == tier.as_ref() => {
            StatusError::bad_request(format!("the tier does not exist: {error}"))
        }
        StoreError::DoesNotExist { .. } if target.served.kind.is_namespaced() => {
            StatusError::namespace_not_found(target.namespace)
        }
        _ => StatusError::from_store(target.served, target.name, error),
    }
}

/// Converts the error of an update: the missing object is either the new tier or the updated object.
fn convert_update_error(request: &ObjectRequest, tier: Option<&str>, error: StoreError) -> StatusError {
    let tier = tier.map(|tier| StoreKey::resource(Kind::Tier, "", tier).to_string());
    match &error {
        StoreError::DoesNotExist { id, .. } if Some(id) == tier.as_ref() => {
            StatusError::bad_request(format!("the tier does not exist: {error}"))
        }
        _ => StatusError::from_store(request.served, &request.name, error),
    }
}

/// Returns kube-apiserver's error message for a creation in a terminating namespace.
fn explain_terminating_namespace(namespace: &str) -> String {
    format!("unable to create new content in namespace {namespace} because it is being terminated")
}

fn format_current_time() -> String {
    format!("{:.0}", jiff::Timestamp::now())
}

/// Applies a patch to the live object. Only server-side apply is possible without a live object.
fn apply_patch(
    call: &VerbRequest,
    patch: &ObjectPatch,
    live: Option<&Value>,
) -> Result<WriteOutcome, StatusError> {
    let target = build_write_target(call, &call.request.name);
    let now = format_current_time();
    let author = build_write_author(call, &now);
    match (patch, live) {
        (ObjectPatch::Apply(config), live) => {
            // The field manager of server-side apply has no default.
            let author = WriteAuthor { manager: &call.request.options.field_manager, ..author };
            write::prepare_apply(target, live, config.clone(), author, call.request.options.force)
        }
        (_, Some(live)) => write::prepare_update(target, live, patch.apply_to(live)?, author, false),
        (_, None) => Err(StatusError::not_found(target.served, target.name)),
    }
}

fn build_write_target<'a>(call: &'a VerbRequest, name: &'a str) -> WriteTarget<'a> {
    let ObjectRequest { served, namespace, is_status, .. } = &call.request;
    WriteTarget { served: *served, namespace, name, is_status: *is_status }
}

fn build_write_author<'a>(call: &'a VerbRequest, now: &'a str) -> WriteAuthor<'a> {
    WriteAuthor { manager: &call.manager, now, validation: call.request.options.field_validation }
}

fn has_resource_version(patch: &ObjectPatch) -> bool {
    match patch {
        ObjectPatch::Json(patch) => {
            patch.0.iter().any(|operation| operation.path().as_str() == "/metadata/resourceVersion")
        }
        ObjectPatch::Merge(object) | ObjectPatch::Apply(object) => {
            !write::read_text_at(object, "/metadata/resourceVersion").is_empty()
        }
    }
}

fn generate_name(object: &mut Value) {
    let prefix = write::read_text_at(object, "/metadata/generateName").to_owned();
    if prefix.is_empty() || !write::read_text_at(object, "/metadata/name").is_empty() {
        return;
    }
    let mut name: String = prefix.chars().take(MAX_GENERATED_PREFIX).collect();
    for _ in 0..SUFFIX_LENGTH {
        name.push(char::from(SUFFIX_LETTERS[rand::random_range(0..SUFFIX_LETTERS.len())]));
    }
    object["metadata"]["name"] = name.into();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::ServedKind;

    #[test]
    fn creation_errors_name_the_missing_object() {
        let missing = |kind: Kind, namespace: &str, id: &str| {
            let served = ServedKind::find(kind.plural()).unwrap();
            let target = WriteTarget { served, namespace, name: "x", is_status: false };
            let error = StoreError::DoesNotExist { id: id.into(), reason: "not found".into() };
            convert_creation_error(target, Some("net"), error).message
        };
        let in_namespace = missing(Kind::NetworkPolicy, "shop", "NetworkPolicy(shop/x)");
        assert_eq!(in_namespace, "namespaces \"shop\" not found");
        let of_cluster = missing(Kind::GlobalNetworkPolicy, "", "GlobalNetworkPolicy(x)");
        assert_eq!(of_cluster, "globalnetworkpolicies.projectcalico.org \"x\" not found");
        let of_tier = missing(Kind::NetworkPolicy, "shop", "Tier(net)");
        assert!(of_tier.starts_with("the tier does not exist: "), "{of_tier}");
    }
}
