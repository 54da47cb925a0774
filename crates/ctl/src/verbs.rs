//! `create`, `apply`, `replace` and `delete` for one object: the rules of the command line on top of those of
//! the store.

use crate::namespace::{NamespaceError, RequestedNamespace, resolve};
use std::time::Duration;
use tortie_model::{Kind, ObjectMeta, Resource};
use tortie_store::{ResourceClient, StoreError};

const MAX_WRITE_ATTEMPTS: usize = 5;
const CONFLICT_RETRY_DELAY: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum VerbError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
}

pub type VerbResult<T> = std::result::Result<T, VerbError>;

/// Sets the namespace of the object.
pub fn set_namespace(resource: &mut Resource, requested: RequestedNamespace) -> VerbResult<()> {
    let namespace = resolve(resource.kind(), &resource.metadata().namespace, requested)?;
    resource.metadata_mut().namespace = namespace;
    Ok(())
}

/// Rejects objects that calicoctl must not write: policies derived from Kubernetes are managed through the
/// Kubernetes API, and ClusterInformation by the components of the cluster (Calico nodes exit if it is
/// deleted).
pub fn check_managed_here(
    kind: Kind,
    namespace: &str,
    name: &str,
    operation: &'static str,
) -> VerbResult<()> {
    if kind == Kind::ClusterInformation {
        let id = kind.to_string();
        return Err(VerbError::Store(StoreError::NotSupported { operation, id, reason: String::new() }));
    }
    if kind == Kind::NetworkPolicy && name.starts_with("knp.default.") {
        return Err(VerbError::Store(StoreError::NotSupported {
            operation,
            id: kind.identify(namespace, name),
            reason: "kubernetes network policies must be managed through the kubernetes API".to_owned(),
        }));
    }
    Ok(())
}

pub async fn create(store: &ResourceClient, mut resource: Resource) -> VerbResult<Resource> {
    let meta = resource.metadata();
    check_managed_here(resource.kind(), &meta.namespace, &meta.name, "create or apply")?;
    let kept = metadata_for_create(resource.metadata());
    *resource.metadata_mut() = kept;
    Ok(store.create(resource).await?)
}

pub async fn apply(store: &ResourceClient, resource: Resource) -> VerbResult<Resource> {
    if resource.kind() == Kind::ClusterInformation {
        return Err(VerbError::Store(StoreError::NotSupported {
            operation: "apply",
            id: Kind::ClusterInformation.to_string(),
            reason: "resource is readonly".to_owned(),
        }));
    }
    let mut fresh = resource.clone();
    fresh.metadata_mut().resource_version.clear();
    match create(store, fresh).await {
        Err(VerbError::Store(StoreError::AlreadyExists { .. } | StoreError::NotSupported { .. })) => {
            replace(store, resource).await
        }
        other => other,
    }
}

/// Replaces an object. If the input has a resourceVersion, it must match. Otherwise the current metadata are
/// kept except for labels and annotations, and a conflict with another writer is retried.
pub async fn replace(store: &ResourceClient, resource: Resource) -> VerbResult<Resource> {
    let kind = resource.kind();
    let given = resource.metadata();
    check_managed_here(kind, &given.namespace, &given.name, "apply or replace")?;
    let version = &given.resource_version;
    let mut attempt = 1;
    loop {
        let current = store.get(kind, &given.namespace, &given.name).await?;
        if !version.is_empty() && *version != current.metadata().resource_version {
            let id = resource.identify();
            return Err(VerbError::Store(StoreError::Conflict { id, current: Some(Box::new(current)) }));
        }
        let mut next = resource.clone();
        *next.metadata_mut() = metadata_for_update(current.metadata(), given);
        match store.update(next).await {
            Err(StoreError::Conflict { .. }) if version.is_empty() && attempt < MAX_WRITE_ATTEMPTS => {
                attempt += 1;
                tokio::time::sleep(CONFLICT_RETRY_DELAY).await;
            }
            other => return Ok(other?),
        }
    }
}

pub async fn delete(store: &ResourceClient, resource: &Resource) -> VerbResult<()> {
    let kind = resource.kind();
    let meta = resource.metadata();
    check_managed_here(kind, &meta.namespace, &meta.name, "delete")?;
    let version = Some(meta.resource_version.as_str()).filter(|v| !v.is_empty());
    let deleted = store.delete(kind, &meta.namespace, &meta.name, version).await.map(drop);
    if let Err(StoreError::Parse { .. }) = deleted
        && let Err(StoreError::DoesNotExist { .. }) = store.get(kind, &meta.namespace, &meta.name).await
    {
        // The deleted entry could not be decoded, but it is gone, so the deletion succeeded.
        return Ok(());
    }
    Ok(deleted?)
}

/// Reads, changes and writes an object; retries on conflicts with other writers. Errors of `change` are returned.
pub async fn modify<E: From<VerbError>>(
    store: &ResourceClient,
    (kind, namespace, name): (Kind, &str, &str),
    change: impl Fn(Resource) -> Result<Resource, E>,
) -> Result<Resource, E> {
    check_managed_here(kind, namespace, name, "apply or replace")?;
    modify_managed(store, (kind, namespace, name), change).await
}

/// Modifies an object like [`modify`], including objects that users must not write.
pub async fn modify_managed<E: From<VerbError>>(
    store: &ResourceClient,
    (kind, namespace, name): (Kind, &str, &str),
    change: impl Fn(Resource) -> Result<Resource, E>,
) -> Result<Resource, E> {
    let mut attempt = 1;
    loop {
        let current = store.get(kind, namespace, name).await.map_err(VerbError::Store)?;
        let version = current.metadata().resource_version.clone();
        let next = change(current)?;
        // A change that sets another resourceVersion must not be retried against a newer one.
        let insists = next.metadata().resource_version != version;
        match store.update(next).await {
            Err(StoreError::Conflict { .. }) if !insists && attempt < MAX_WRITE_ATTEMPTS => {
                attempt += 1;
                tokio::time::sleep(CONFLICT_RETRY_DELAY).await;
            }
            other => return Ok(other.map_err(VerbError::Store)?),
        }
    }
}

/// Returns the metadata that users may set; the store generates the rest.
fn metadata_for_create(given: &ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        name: given.name.clone(),
        namespace: given.namespace.clone(),
        resource_version: given.resource_version.clone(),
        labels: given.labels.clone(),
        annotations: given.annotations.clone(),
        ..ObjectMeta::default()
    }
}

pub fn metadata_for_update(current: &ObjectMeta, given: &ObjectMeta) -> ObjectMeta {
    ObjectMeta { labels: given.labels.clone(), annotations: given.annotations.clone(), ..current.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(name: &str, uid: &str, label: &str) -> ObjectMeta {
        ObjectMeta {
            name: name.into(),
            uid: uid.into(),
            generation: 3,
            labels: [(label.to_owned(), "x".to_owned())].into(),
            annotations: [(label.to_owned(), "y".to_owned())].into(),
            finalizers: vec!["f".into()],
            ..ObjectMeta::default()
        }
    }

    #[test]
    fn creation_takes_five_fields_of_the_metadata() {
        let kept = metadata_for_create(&meta("a", "uid", "l"));
        assert_eq!(
            kept,
            ObjectMeta { uid: String::new(), generation: 0, finalizers: vec![], ..meta("a", "uid", "l") }
        );
    }

    #[test]
    fn updates_keep_metadata_but_labels_and_annotations() {
        let merged = metadata_for_update(&meta("a", "stored", "old"), &meta("a", "given", "new"));
        assert_eq!(merged, ObjectMeta { uid: "stored".into(), ..meta("a", "", "new") });
    }

    #[test]
    fn objects_that_others_manage_are_refused() {
        let error = check_managed_here(Kind::NetworkPolicy, "shop", "knp.default.web", "delete").unwrap_err();
        assert_eq!(
            error.to_string(),
            "operation delete is not supported on NetworkPolicy(shop/knp.default.web): kubernetes network policies \
             must be managed through the kubernetes API"
        );
        assert!(check_managed_here(Kind::NetworkPolicy, "shop", "knp.web", "delete").is_ok());
        assert!(check_managed_here(Kind::GlobalNetworkPolicy, "", "knp.default.web", "delete").is_ok());
        let error = check_managed_here(Kind::ClusterInformation, "", "default", "delete").unwrap_err();
        assert_eq!(error.to_string(), "operation delete is not supported on ClusterInformation");
    }
}
