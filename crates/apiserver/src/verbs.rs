//! Executes the verbs on objects for an authorized user.

use crate::access::AccessControl;
use crate::body;
use crate::deletion::{self, DeleteOptions, DeletionPlan};
use crate::patch::ObjectPatch;
use crate::refusal::StatusError;
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
use tortie_model::{Kind, Resource};
use tortie_store::orchestrator::KubernetesUser;
use tortie_store::tier_of;

/// Maximum number of attempts of a write without a resource version when others modify the object concurrently.
const MAX_WRITE_ATTEMPTS: u32 = 5;
/// Letters of the suffix of generated names: without look-alikes and without vowels that could form words.
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
    /// A Status of a successful request.
    Done(Value),
}

#[derive(Clone, Copy)]
pub struct VerbExecutor<'a> {
    pub storage: &'a ObjectStorage,
    pub access: &'a AccessControl,
    pub workers: &'a WorkerPool,
}

impl VerbExecutor<'_> {
    /// Executes every verb except watch.
    pub async fn carry_out(self, asked: &Arc<VerbRequest>) -> Result<VerbResponse, StatusError> {
        let request = &asked.request;
        let is_write = !matches!(request.verb, RequestVerb::Get | RequestVerb::List | RequestVerb::Watch);
        if is_write && request.served.is_read_only() {
            return Err(StatusError::method_not_allowed(&format!(
                "{} is not supported on resources of kind {:?}",
                request.verb.name(),
                request.served.qualified()
            )));
        }
        match request.verb {
            RequestVerb::Get => self.get(asked).await,
            RequestVerb::List | RequestVerb::Watch => self.list(asked).await.map(VerbResponse::List),
            RequestVerb::Create => self.create(asked).await,
            RequestVerb::Update => self.update(asked).await,
            RequestVerb::Patch => self.patch(asked).await,
            RequestVerb::Delete => self.delete(asked).await,
            RequestVerb::DeleteCollection => self.delete_all(asked).await,
        }
    }

    async fn in_tier(
        self,
        asked: &VerbRequest,
        verb: RequestVerb,
        name: &str,
        tier: &str,
    ) -> Result<(), StatusError> {
        let ObjectRequest { served, namespace, .. } = &asked.request;
        let wanted = TierAccess { served: *served, verb, namespace, name, tier };
        self.access.authorise_tier(&asked.user, &wanted).await
    }

    /// Returns the live object of a request, after checking the permission on its tier.
    async fn live(self, asked: &VerbRequest) -> Result<Resource, StatusError> {
        let request = &asked.request;
        let resource = self.storage.get(request.served, &request.namespace, &request.name).await?;
        if let Some(tier) = tier_of(&resource) {
            self.in_tier(asked, request.verb, &request.name, tier).await?;
        }
        Ok(resource)
    }

    async fn get(self, asked: &VerbRequest) -> Result<VerbResponse, StatusError> {
        let object = self.live(asked).await?.to_value();
        Ok(VerbResponse::Object { object, code: 200, warnings: Vec::new() })
    }

    /// Returns the selection of a request, restricted to the objects that the user may see.
    pub async fn selection(self, asked: &VerbRequest) -> Result<ObjectSelection, StatusError> {
        let request = &asked.request;
        let options = &request.options;
        let mut selection =
            ObjectSelection::parse(request.served, &options.label_selector, &options.field_selector)?;
        if request.served.is_tiered() {
            let tiers = self.storage.tiers().await?;
            self.access.narrow(&asked.user, request, &mut selection, tiers).await?;
        }
        Ok(selection)
    }

    async fn list(self, asked: &VerbRequest) -> Result<ObjectList, StatusError> {
        let selection = self.selection(asked).await?;
        let request = &asked.request;
        self.storage.list(request.served, &request.namespace, &selection, &request.options).await
    }

    async fn create(self, asked: &Arc<VerbRequest>) -> Result<VerbResponse, StatusError> {
        let task = asked.clone();
        let prepared = self.workers.run(move || {
            let mut submitted = body::object(&task.content_type, &task.body)?;
            generate_name(&mut submitted);
            let name = write::text(&submitted, "/metadata/name").to_owned();
            write::created(place(&task, &name), submitted, author(&task, &now()))
        });
        self.insert(asked, prepared.await?).await
    }

    async fn insert(self, asked: &VerbRequest, prepared: PreparedWrite) -> Result<VerbResponse, StatusError> {
        let served = asked.request.served;
        let PreparedWrite { resource, warnings } = prepared;
        let name = resource.metadata().name.clone();
        if let Some(tier) = tier_of(&resource) {
            // Applying to an object that does not exist creates it.
            self.in_tier(asked, asked.request.verb, &name, tier).await?;
        }
        self.check_namespace(asked).await?;
        let resources = self.storage.resources();
        let outcome = match asked.request.options.dry_run {
            true => match resources.check_create(resource).await {
                Ok(created) => match self.storage.get(served, &asked.request.namespace, &name).await {
                    Ok(_) => return Err(StatusError::already_exists(served, &name)),
                    Err(refusal) if refusal.code == 404 => Ok(created),
                    Err(refusal) => return Err(refusal),
                },
                refused => refused,
            },
            false => resources.create(resource).await,
        };
        let created = outcome.map_err(|error| match error {
            // The missing object is not the created one, but the tier or the namespace.
            tortie_store::StoreError::DoesNotExist { ref id, .. } if id.starts_with("Tier(") => {
                StatusError::bad_request(format!("the tier does not exist: {error}"))
            }
            other => StatusError::of_store(served, &name, other),
        })?;
        Ok(VerbResponse::Object { object: created.to_value(), code: 201, warnings })
    }

    /// Checks that the namespace exists and is not terminating. With Kubernetes as the datastore, it checks this
    /// itself.
    async fn check_namespace(self, asked: &VerbRequest) -> Result<(), StatusError> {
        let ObjectRequest { served, namespace, .. } = &asked.request;
        let is_kept_elsewhere = !self.storage.resources().client().capabilities().checks_namespaces;
        if !served.kind.is_namespaced() || !(is_kept_elsewhere || asked.request.options.dry_run) {
            return Ok(());
        }
        match self.access.orchestrator().namespace_terminates(namespace).await {
            Ok(false) => Ok(()),
            Ok(true) => {
                let why = format!(
                    "unable to create new content in namespace {namespace} because it is being terminated"
                );
                Err(StatusError::forbidden(*served, "", &why))
            }
            Err(tortie_store::StoreError::DoesNotExist { .. }) => {
                Err(StatusError::namespace_not_found(namespace))
            }
            Err(error) => Err(StatusError::unavailable(error.to_string())),
        }
    }

    async fn update(self, asked: &Arc<VerbRequest>) -> Result<VerbResponse, StatusError> {
        let task = asked.clone();
        let submitted = self.workers.run(move || body::object(&task.content_type, &task.body)).await?;
        let live = self.live(asked).await?;
        let (task, before) = (asked.clone(), live.to_value());
        let outcome = self.workers.run(move || {
            write::updated(place(&task, &task.request.name), &before, submitted, author(&task, &now()), true)
        });
        self.replace(asked, &live, outcome.await?).await
    }

    async fn replace(
        self,
        asked: &VerbRequest,
        live: &Resource,
        outcome: WriteOutcome,
    ) -> Result<VerbResponse, StatusError> {
        let request = &asked.request;
        let object = |object: Value, warnings| VerbResponse::Object { object, code: 200, warnings };
        let PreparedWrite { resource, warnings } = match outcome {
            WriteOutcome::Same => return Ok(object(live.to_value(), Vec::new())),
            WriteOutcome::Gone => {
                if !request.options.dry_run {
                    self.storage.delete(request.served, live).await?;
                }
                return Ok(object(live.to_value(), Vec::new()));
            }
            WriteOutcome::Changed(prepared) => prepared,
        };
        if let Some(tier) = tier_of(&resource) {
            self.in_tier(asked, request.verb, &request.name, tier).await?;
        }
        let resources = self.storage.resources();
        let replaced = match request.options.dry_run {
            true => resources.check_update(resource).await,
            false => resources.update(resource).await,
        };
        let replaced =
            replaced.map_err(|error| StatusError::of_store(request.served, &request.name, error))?;
        Ok(object(replaced.to_value(), warnings))
    }

    /// Applies a patch. A patch without a resource version is repeated from the current object after a concurrent
    /// change.
    async fn patch(self, asked: &Arc<VerbRequest>) -> Result<VerbResponse, StatusError> {
        let task = asked.clone();
        let read = move || ObjectPatch::read(body::media_type(&task.content_type), &task.body).map(Arc::new);
        let patch = self.workers.run(read).await?;
        let mut attempt = 1;
        loop {
            match self.patch_once(asked, &patch).await {
                Err(refusal)
                    if refusal.is_race() && attempt < MAX_WRITE_ATTEMPTS && !names_version(&patch) =>
                {
                    attempt += 1
                }
                done => return done,
            }
        }
    }

    async fn patch_once(
        self,
        asked: &Arc<VerbRequest>,
        patch: &Arc<ObjectPatch>,
    ) -> Result<VerbResponse, StatusError> {
        let live = match self.live(asked).await {
            Ok(live) => Some(live),
            Err(refusal) if refusal.code == 404 && patch.creates() => None,
            Err(refusal) => return Err(refusal),
        };
        let before = live.as_ref().map(Resource::to_value);
        let (task, patch) = (asked.clone(), patch.clone());
        let outcome = self.workers.run(move || patched(&task, &patch, before.as_ref())).await?;
        match (live, outcome) {
            (Some(live), outcome) => self.replace(asked, &live, outcome).await,
            (None, WriteOutcome::Changed(prepared)) => self.insert(asked, prepared).await,
            (None, _) => Err(StatusError::not_found(asked.request.served, &asked.request.name)),
        }
    }

    async fn delete(self, asked: &VerbRequest) -> Result<VerbResponse, StatusError> {
        let request = &asked.request;
        let options =
            DeleteOptions::read(&request.options.propagation_policy, request.options.dry_run, &asked.body)?;
        let mut attempt = 1;
        loop {
            let live = self.live(asked).await?;
            match self.delete_object(asked, &live, &options).await {
                Err(refusal)
                    if refusal.is_race()
                        && attempt < MAX_WRITE_ATTEMPTS
                        && options.resource_version.is_empty() =>
                {
                    attempt += 1;
                }
                done => return done,
            }
        }
    }

    async fn delete_object(
        self,
        asked: &VerbRequest,
        live: &Resource,
        options: &DeleteOptions,
    ) -> Result<VerbResponse, StatusError> {
        let served = asked.request.served;
        let name = &live.metadata().name;
        let object = live.to_value();
        options.check(served, &object)?;
        let failed = |error| StatusError::of_store(served, name, error);
        let resources = self.storage.resources();
        match deletion::plan(&object, options.propagation, &now()) {
            DeletionPlan::Now => {
                match options.dry_run {
                    true => resources.check_delete(served.kind, name).await.map_err(failed)?,
                    false => self.storage.delete(served, live).await?,
                }
                let details = json!({"name": name, "group": GROUP, "kind": served.kind.plural(), "uid": live.metadata().uid});
                Ok(VerbResponse::Done(
                    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}),
                ))
            }
            DeletionPlan::Waiting => Ok(VerbResponse::Object { object, code: 200, warnings: Vec::new() }),
            DeletionPlan::Later(held) => {
                // Reject the deletion now if it would be rejected once the finalizers are removed.
                resources.check_delete(served.kind, name).await.map_err(failed)?;
                let resource = Resource::from_store(served.kind, held.clone())
                    .map_err(|error| StatusError::internal(error.to_string()))?;
                let object = match options.dry_run {
                    true => held,
                    false => resources.update(resource).await.map_err(failed)?.to_value(),
                };
                Ok(VerbResponse::Object { object, code: 200, warnings: Vec::new() })
            }
        }
    }

    /// Deletes all selected objects. Objects that are deleted concurrently are skipped.
    async fn delete_all(self, asked: &Arc<VerbRequest>) -> Result<VerbResponse, StatusError> {
        let request = &asked.request;
        let options =
            DeleteOptions::read(&request.options.propagation_policy, request.options.dry_run, &asked.body)?;
        let selection = self.selection(asked).await?;
        let listing = self.storage.list(request.served, &request.namespace, &selection, &request.options);
        let mut listed = listing.await?;
        let mut deleted: Vec<Arc<StoredObject>> = Vec::new();
        for object in std::mem::take(&mut listed.items) {
            let one = ObjectRequest {
                verb: RequestVerb::Delete,
                namespace: object.namespace.clone(),
                name: object.name.clone(),
                ..request.clone()
            };
            let live = match self.storage.get(one.served, &one.namespace, &one.name).await {
                Ok(live) => live,
                Err(refusal) if refusal.code == 404 => continue,
                Err(refusal) => return Err(refusal),
            };
            // It may have moved to a tier that the user may not see since it was listed.
            if !selection.selects(&StoredObject::of(&live).subject()) {
                continue;
            }
            let asked = VerbRequest { request: one, ..VerbRequest::clone(asked) };
            match self.delete_object(&asked, &live, &options).await {
                Ok(_) => deleted.push(object),
                Err(refusal) if refusal.code == 404 => {}
                Err(refusal) => return Err(refusal),
            }
        }
        listed.items = deleted;
        Ok(VerbResponse::List(listed))
    }

    /// Returns a receiver for tier changes. They end watches of policies, because the user may then see other
    /// policies.
    pub async fn tier_changes(
        self,
        request: &ObjectRequest,
    ) -> Result<Option<tokio::sync::watch::Receiver<u64>>, StatusError> {
        match request.served.is_tiered() {
            true => Ok(Some(self.storage.cache(Kind::Tier).await?.changes())),
            false => Ok(None),
        }
    }
}

fn now() -> String {
    format!("{:.0}", jiff::Timestamp::now())
}

/// Returns the object after a patch: of the live object, or of none if a configuration is applied.
fn patched(
    asked: &VerbRequest,
    patch: &ObjectPatch,
    live: Option<&Value>,
) -> Result<WriteOutcome, StatusError> {
    let (place, now) = (place(asked, &asked.request.name), now());
    let by = author(asked, &now);
    match (patch, live) {
        (ObjectPatch::Apply(config), live) => {
            // The field manager of server-side apply has no default.
            let by = WriteAuthor { manager: &asked.request.options.field_manager, ..by };
            write::applied(place, live, config.clone(), by, asked.request.options.force)
        }
        (_, Some(live)) => write::updated(place, live, patch.onto(live)?, by, false),
        (_, None) => Err(StatusError::not_found(place.served, place.name)),
    }
}

fn place<'a>(asked: &'a VerbRequest, name: &'a str) -> WriteTarget<'a> {
    let ObjectRequest { served, namespace, is_status, .. } = &asked.request;
    WriteTarget { served: *served, namespace, name, is_status: *is_status }
}

fn author<'a>(asked: &'a VerbRequest, now: &'a str) -> WriteAuthor<'a> {
    WriteAuthor { manager: &asked.manager, now, validation: asked.request.options.field_validation }
}

fn names_version(patch: &ObjectPatch) -> bool {
    match patch {
        ObjectPatch::Json(patch) => {
            patch.0.iter().any(|operation| operation.path().as_str() == "/metadata/resourceVersion")
        }
        ObjectPatch::Merge(object) | ObjectPatch::Apply(object) => {
            !write::text(object, "/metadata/resourceVersion").is_empty()
        }
    }
}

fn generate_name(object: &mut Value) {
    let prefix = write::text(object, "/metadata/generateName").to_owned();
    if prefix.is_empty() || !write::text(object, "/metadata/name").is_empty() {
        return;
    }
    let mut name: String = prefix.chars().take(MAX_GENERATED_PREFIX).collect();
    for _ in 0..SUFFIX_LENGTH {
        name.push(char::from(SUFFIX_LETTERS[rand::random_range(0..SUFFIX_LETTERS.len())]));
    }
    object["metadata"]["name"] = name.into();
}
