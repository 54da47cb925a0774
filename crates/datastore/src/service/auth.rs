//! The auth service: users, roles and passwords. Also identifies the sender of a request.

use super::{GrpcResult, StoreService, unexpected};
use crate::auth::{AuthChange, AuthState, KeyAccess, NO_PASSWORD_HASH, hash_password, verify_password};
use crate::connection::ClientIdentity;
use crate::core::{WriteRequest, WriteResponse};
use crate::key_span::KeySpan;
use crate::rejection::RequestRejection;
use std::sync::Arc;
use std::time::Instant;
use tonic::metadata::MetadataMap;
use tonic::{Extensions, Request, Response, Status};
use tortie_etcd_proto::etcdserverpb::auth_server::Auth;
use tortie_etcd_proto::etcdserverpb::request_op::Request as Operation;
use tortie_etcd_proto::etcdserverpb::*;

/// The sender of a request and its permissions.
pub struct RequestCaller {
    auth: Arc<AuthState>,
    /// `None` while authentication is disabled.
    user: Option<String>,
}

impl RequestCaller {
    /// Returns a number that changes whenever users, roles or permissions change.
    pub fn auth_revision(&self) -> u64 {
        self.auth.revision
    }

    pub fn check(&self, access: KeyAccess, span: &KeySpan) -> Result<(), RequestRejection> {
        match &self.user {
            Some(user) if !self.auth.may(user, access, span) => Err(RequestRejection::PERMISSION_DENIED),
            _ => Ok(()),
        }
    }

    pub fn check_root(&self) -> Result<(), RequestRejection> {
        match &self.user {
            Some(user) if !self.auth.is_root(user) => Err(RequestRejection::PERMISSION_DENIED),
            _ => Ok(()),
        }
    }

    pub fn check_range(&self, request: &RangeRequest) -> Result<(), RequestRejection> {
        self.check_with(|| KeySpan::new(&request.key, &request.range_end), true, false)
    }

    pub fn check_put(&self, request: &PutRequest) -> Result<(), RequestRejection> {
        self.check_with(|| KeySpan::Key(request.key.clone()), request.prev_kv, true)
    }

    pub fn check_delete(&self, request: &DeleteRangeRequest) -> Result<(), RequestRejection> {
        self.check_with(|| KeySpan::new(&request.key, &request.range_end), request.prev_kv, true)
    }

    /// Checks both branches, because the choice of the branch must not reveal data that the user may not read.
    pub fn check_txn(&self, request: &TxnRequest) -> Result<(), RequestRejection> {
        if self.user.is_none() {
            return Ok(());
        }
        for compare in &request.compare {
            self.check(KeyAccess::Read, &KeySpan::new(&compare.key, &compare.range_end))?;
        }
        for op in request.success.iter().chain(&request.failure) {
            match &op.request {
                Some(Operation::RequestRange(request)) => self.check_range(request)?,
                Some(Operation::RequestPut(request)) => self.check_put(request)?,
                Some(Operation::RequestDeleteRange(request)) => self.check_delete(request)?,
                Some(Operation::RequestTxn(request)) => self.check_txn(request)?,
                None => {}
            }
        }
        Ok(())
    }

    fn check_with(
        &self,
        span: impl FnOnce() -> KeySpan,
        read: bool,
        write: bool,
    ) -> Result<(), RequestRejection> {
        if self.user.is_none() {
            return Ok(());
        }
        let span = span();
        if read {
            self.check(KeyAccess::Read, &span)?;
        }
        if write {
            self.check(KeyAccess::Write, &span)?;
        }
        Ok(())
    }
}

impl StoreService {
    /// Identifies the sender of a request: the user of its token, or the user named in its certificate.
    pub fn caller<T>(&self, request: &Request<T>) -> Result<RequestCaller, RequestRejection> {
        self.identify(request.metadata(), request.extensions())
    }

    pub fn identify(
        &self,
        metadata: &MetadataMap,
        extensions: &Extensions,
    ) -> Result<RequestCaller, RequestRejection> {
        let auth = self.latest.get().auth.clone();
        if !auth.enabled {
            return Ok(RequestCaller { auth, user: None });
        }
        let token = metadata.get("token").or_else(|| metadata.get("authorization"));
        let user = match token {
            Some(token) => {
                let token = token.to_str().map_err(|_| RequestRejection::INVALID_TOKEN)?;
                self.tokens.user(token, Instant::now()).ok_or(RequestRejection::INVALID_TOKEN)?
            }
            None => {
                let peer = extensions.get::<ClientIdentity>().and_then(|peer| peer.common_name.clone());
                peer.ok_or(RequestRejection::USER_EMPTY)?
            }
        };
        Ok(RequestCaller { auth, user: Some(user) })
    }

    async fn change_auth(
        &self,
        caller: RequestCaller,
        change: AuthChange,
    ) -> Result<Option<ResponseHeader>, Status> {
        caller.check_root()?;
        match self.writer.write(WriteRequest::Auth(change)).await? {
            WriteResponse::Done { revision } => Ok(self.header(revision)),
            other => Err(unexpected(other)),
        }
    }

    /// Hashes a password. Hashing is slow on purpose, so the number of concurrent hashes is limited.
    async fn hash(&self, password: String) -> Result<Vec<u8>, Status> {
        let _turn = self.hashing.acquire().await.map_err(|_| RequestRejection::STOPPED)?;
        let hashed = tokio::task::spawn_blocking(move || hash_password(&password)).await;
        hashed.map_err(|_| RequestRejection::STORAGE_FAILED.into())
    }
}

#[tonic::async_trait]
impl Auth for StoreService {
    async fn authenticate(&self, request: Request<AuthenticateRequest>) -> GrpcResult<AuthenticateResponse> {
        let AuthenticateRequest { name, password } = request.into_inner();
        let auth = self.latest.get().auth.clone();
        if !auth.enabled {
            return Err(RequestRejection::AUTH_NOT_ENABLED.into());
        }
        // Rejecting an unknown user, or one without a password, must take as long as rejecting a wrong password.
        let user = auth.user(&name).filter(|user| !user.password.is_empty());
        let hashed = user.map_or_else(|| NO_PASSWORD_HASH.to_vec(), |user| user.password.clone());
        let _turn = self.hashing.acquire().await.map_err(|_| RequestRejection::STOPPED)?;
        let verified = tokio::task::spawn_blocking(move || verify_password(&hashed, &password)).await;
        if !verified.unwrap_or(false) {
            tracing::info!("authentication failed for user {name:?}");
            return Err(RequestRejection::AUTH_FAILED.into());
        }
        let token = self.tokens.issue(&name, Instant::now())?;
        Ok(Response::new(AuthenticateResponse { header: self.current_header(), token }))
    }

    async fn auth_enable(&self, request: Request<AuthEnableRequest>) -> GrpcResult<AuthEnableResponse> {
        let header = self.change_auth(self.caller(&request)?, AuthChange::Enable).await?;
        tracing::info!("authentication is enabled: clients must authenticate from now on");
        Ok(Response::new(AuthEnableResponse { header }))
    }

    async fn auth_disable(&self, request: Request<AuthDisableRequest>) -> GrpcResult<AuthDisableResponse> {
        let header = self.change_auth(self.caller(&request)?, AuthChange::Disable).await?;
        tracing::warn!("authentication is disabled: every client has all permissions");
        Ok(Response::new(AuthDisableResponse { header }))
    }

    async fn auth_status(&self, request: Request<AuthStatusRequest>) -> GrpcResult<AuthStatusResponse> {
        self.caller(&request)?.check_root()?;
        let auth = self.latest.get().auth.clone();
        Ok(Response::new(AuthStatusResponse {
            header: self.current_header(),
            enabled: auth.enabled,
            auth_revision: auth.revision.max(1),
        }))
    }

    async fn user_add(&self, request: Request<AuthUserAddRequest>) -> GrpcResult<AuthUserAddResponse> {
        let caller = self.caller(&request)?;
        caller.check_root()?;
        let AuthUserAddRequest { name, password, options, .. } = request.into_inner();
        let has_password = !options.is_some_and(|options| options.no_password);
        let password = if has_password { self.hash(password).await? } else { Vec::new() };
        let header = self.change_auth(caller, AuthChange::AddUser { name, password }).await?;
        Ok(Response::new(AuthUserAddResponse { header }))
    }

    async fn user_get(&self, request: Request<AuthUserGetRequest>) -> GrpcResult<AuthUserGetResponse> {
        let caller = self.caller(&request)?;
        let name = request.into_inner().name;
        // Every user may read their own entry.
        if caller.user.as_ref() != Some(&name) {
            caller.check_root()?;
        }
        let roles = caller.auth.user(&name).ok_or(RequestRejection::USER_NOT_FOUND)?.roles.clone();
        Ok(Response::new(AuthUserGetResponse { header: self.current_header(), roles }))
    }

    async fn user_list(&self, request: Request<AuthUserListRequest>) -> GrpcResult<AuthUserListResponse> {
        let caller = self.caller(&request)?;
        caller.check_root()?;
        let users = caller.auth.users.iter().map(|user| user.name.clone()).collect();
        Ok(Response::new(AuthUserListResponse { header: self.current_header(), users }))
    }

    async fn user_delete(
        &self,
        request: Request<AuthUserDeleteRequest>,
    ) -> GrpcResult<AuthUserDeleteResponse> {
        let caller = self.caller(&request)?;
        let name = request.into_inner().name;
        let header = self.change_auth(caller, AuthChange::DeleteUser { name: name.clone() }).await?;
        self.tokens.revoke(&name);
        Ok(Response::new(AuthUserDeleteResponse { header }))
    }

    async fn user_change_password(
        &self,
        request: Request<AuthUserChangePasswordRequest>,
    ) -> GrpcResult<AuthUserChangePasswordResponse> {
        let caller = self.caller(&request)?;
        caller.check_root()?;
        let AuthUserChangePasswordRequest { name, password, .. } = request.into_inner();
        let password = self.hash(password).await?;
        let change = AuthChange::ChangePassword { name: name.clone(), password };
        let header = self.change_auth(caller, change).await?;
        self.tokens.revoke(&name);
        Ok(Response::new(AuthUserChangePasswordResponse { header }))
    }

    async fn user_grant_role(
        &self,
        request: Request<AuthUserGrantRoleRequest>,
    ) -> GrpcResult<AuthUserGrantRoleResponse> {
        let caller = self.caller(&request)?;
        let AuthUserGrantRoleRequest { user, role } = request.into_inner();
        let header = self.change_auth(caller, AuthChange::GrantRole { user, role }).await?;
        Ok(Response::new(AuthUserGrantRoleResponse { header }))
    }

    async fn user_revoke_role(
        &self,
        request: Request<AuthUserRevokeRoleRequest>,
    ) -> GrpcResult<AuthUserRevokeRoleResponse> {
        let caller = self.caller(&request)?;
        let AuthUserRevokeRoleRequest { name: user, role } = request.into_inner();
        let header = self.change_auth(caller, AuthChange::RevokeRole { user, role }).await?;
        Ok(Response::new(AuthUserRevokeRoleResponse { header }))
    }

    async fn role_add(&self, request: Request<AuthRoleAddRequest>) -> GrpcResult<AuthRoleAddResponse> {
        let caller = self.caller(&request)?;
        let name = request.into_inner().name;
        let header = self.change_auth(caller, AuthChange::AddRole { name }).await?;
        Ok(Response::new(AuthRoleAddResponse { header }))
    }

    async fn role_get(&self, request: Request<AuthRoleGetRequest>) -> GrpcResult<AuthRoleGetResponse> {
        let caller = self.caller(&request)?;
        let name = request.into_inner().role;
        let own = caller.user.as_ref().and_then(|user| caller.auth.user(user));
        if !own.is_some_and(|user| user.roles.contains(&name)) {
            caller.check_root()?;
        }
        let perm = caller.auth.role(&name).ok_or(RequestRejection::ROLE_NOT_FOUND)?.permissions.clone();
        Ok(Response::new(AuthRoleGetResponse { header: self.current_header(), perm }))
    }

    async fn role_list(&self, request: Request<AuthRoleListRequest>) -> GrpcResult<AuthRoleListResponse> {
        let caller = self.caller(&request)?;
        caller.check_root()?;
        let roles = caller.auth.roles.iter().map(|role| role.name.clone()).collect();
        Ok(Response::new(AuthRoleListResponse { header: self.current_header(), roles }))
    }

    async fn role_delete(
        &self,
        request: Request<AuthRoleDeleteRequest>,
    ) -> GrpcResult<AuthRoleDeleteResponse> {
        let caller = self.caller(&request)?;
        let name = request.into_inner().role;
        let header = self.change_auth(caller, AuthChange::DeleteRole { name }).await?;
        Ok(Response::new(AuthRoleDeleteResponse { header }))
    }

    async fn role_grant_permission(
        &self,
        request: Request<AuthRoleGrantPermissionRequest>,
    ) -> GrpcResult<AuthRoleGrantPermissionResponse> {
        let caller = self.caller(&request)?;
        let AuthRoleGrantPermissionRequest { name: role, perm } = request.into_inner();
        let permission = perm.ok_or(RequestRejection::PERMISSION_NOT_GIVEN)?;
        let header = self.change_auth(caller, AuthChange::GrantPermission { role, permission }).await?;
        Ok(Response::new(AuthRoleGrantPermissionResponse { header }))
    }

    async fn role_revoke_permission(
        &self,
        request: Request<AuthRoleRevokePermissionRequest>,
    ) -> GrpcResult<AuthRoleRevokePermissionResponse> {
        let caller = self.caller(&request)?;
        let AuthRoleRevokePermissionRequest { role, key, range_end } = request.into_inner();
        let header = self.change_auth(caller, AuthChange::RevokePermission { role, key, range_end }).await?;
        Ok(Response::new(AuthRoleRevokePermissionResponse { header }))
    }
}
