//! Users, roles and their permissions: one value that is changed as a whole and stored with the data.

use super::permission::covers;
use crate::key_span::KeySpan;
use crate::rejection::RequestRejection;
use bytes::Bytes;
use tortie_etcd_proto::etcdserverpb::Permission;
use tortie_etcd_proto::etcdserverpb::permission::Type;

/// Name of the user and of the role with all permissions.
pub const ROOT: &str = "root";
/// Maximum number of users, of roles, and of permissions per role.
const MAX_AUTH_ENTRIES: usize = 1000;

#[derive(Clone, PartialEq, prost::Message)]
pub struct AuthState {
    #[prost(bool, tag = "1")]
    pub enabled: bool,
    /// Incremented with every change; an empty state is at 1.
    #[prost(uint64, tag = "2")]
    pub revision: u64,
    #[prost(message, repeated, tag = "3")]
    pub users: Vec<AuthUser>,
    #[prost(message, repeated, tag = "4")]
    pub roles: Vec<AuthRole>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct AuthUser {
    #[prost(string, tag = "1")]
    pub name: String,
    /// Password hash; empty if the user has no password and can authenticate only with a certificate.
    #[prost(bytes = "vec", tag = "2")]
    pub password: Vec<u8>,
    #[prost(string, repeated, tag = "3")]
    pub roles: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct AuthRole {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, repeated, tag = "2")]
    pub permissions: Vec<Permission>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum AuthChange {
    Enable,
    Disable,
    AddUser { name: String, password: Vec<u8> },
    DeleteUser { name: String },
    ChangePassword { name: String, password: Vec<u8> },
    GrantRole { user: String, role: String },
    RevokeRole { user: String, role: String },
    AddRole { name: String },
    DeleteRole { name: String },
    GrantPermission { role: String, permission: Permission },
    RevokePermission { role: String, key: Bytes, range_end: Bytes },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyAccess {
    Read,
    Write,
}

impl AuthState {
    /// Returns the state after a change, or the error with which etcd rejects it.
    pub fn apply(&self, change: &AuthChange) -> Result<AuthState, RequestRejection> {
        let mut next = self.clone();
        match change {
            AuthChange::Enable => {
                let root = self.user(ROOT).ok_or(RequestRejection::ROOT_USER_MISSING)?;
                if !root.roles.iter().any(|role| role == ROOT) {
                    return Err(RequestRejection::ROOT_ROLE_MISSING);
                }
                next.enabled = true;
            }
            AuthChange::Disable => next.enabled = false,
            AuthChange::AddUser { name, password } => next.add_user(name, password)?,
            AuthChange::DeleteUser { name } => {
                self.spare_root(name == ROOT)?;
                self.user(name).ok_or(RequestRejection::USER_NOT_FOUND)?;
                next.users.retain(|user| user.name != *name);
            }
            AuthChange::ChangePassword { name, password } => {
                next.user_mut(name)?.password = password.clone();
            }
            AuthChange::GrantRole { user, role } => next.grant_role(user, role)?,
            AuthChange::RevokeRole { user, role } => {
                self.spare_root(user == ROOT && role == ROOT)?;
                let roles = &mut next.user_mut(user)?.roles;
                let position = roles.iter().position(|granted| granted == role);
                roles.remove(position.ok_or(RequestRejection::ROLE_NOT_GRANTED)?);
            }
            AuthChange::AddRole { name } => next.add_role(name)?,
            AuthChange::DeleteRole { name } => {
                self.spare_root(name == ROOT)?;
                self.role(name).ok_or(RequestRejection::ROLE_NOT_FOUND)?;
                next.roles.retain(|role| role.name != *name);
                next.users.iter_mut().for_each(|user| user.roles.retain(|role| role != name));
            }
            AuthChange::GrantPermission { role, permission } => {
                let permissions = &mut next.role_mut(role)?.permissions;
                permissions
                    .retain(|old| (&old.key, &old.range_end) != (&permission.key, &permission.range_end));
                if permissions.len() >= MAX_AUTH_ENTRIES {
                    return Err(RequestRejection::TOO_MANY_REQUESTS);
                }
                permissions.push(permission.clone());
                permissions.sort_by(|a, b| (&a.key, &a.range_end).cmp(&(&b.key, &b.range_end)));
            }
            AuthChange::RevokePermission { role, key, range_end } => {
                let permissions = &mut next.role_mut(role)?.permissions;
                let before = permissions.len();
                permissions.retain(|old| (&old.key, &old.range_end) != (key, range_end));
                if permissions.len() == before {
                    return Err(RequestRejection::PERMISSION_NOT_GRANTED);
                }
            }
        }
        next.revision = self.revision.max(1) + 1;
        Ok(next)
    }

    fn add_user(&mut self, name: &str, password: &[u8]) -> Result<(), RequestRejection> {
        if name.is_empty() {
            return Err(RequestRejection::USER_EMPTY);
        }
        if self.user(name).is_some() {
            return Err(RequestRejection::USER_EXISTS);
        }
        if self.users.len() >= MAX_AUTH_ENTRIES {
            return Err(RequestRejection::TOO_MANY_REQUESTS);
        }
        let user = AuthUser { name: name.to_owned(), password: password.to_vec(), roles: Vec::new() };
        self.users.push(user);
        self.users.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(())
    }

    fn add_role(&mut self, name: &str) -> Result<(), RequestRejection> {
        if name.is_empty() {
            return Err(RequestRejection::ROLE_EMPTY);
        }
        if self.role(name).is_some() {
            return Err(RequestRejection::ROLE_EXISTS);
        }
        if self.roles.len() >= MAX_AUTH_ENTRIES {
            return Err(RequestRejection::TOO_MANY_REQUESTS);
        }
        self.roles.push(AuthRole { name: name.to_owned(), permissions: Vec::new() });
        self.roles.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(())
    }

    fn grant_role(&mut self, user: &str, role: &str) -> Result<(), RequestRejection> {
        self.user(user).ok_or(RequestRejection::USER_NOT_FOUND)?;
        if role != ROOT {
            self.role(role).ok_or(RequestRejection::ROLE_NOT_FOUND)?;
        }
        let roles = &mut self.user_mut(user)?.roles;
        if !roles.iter().any(|granted| granted == role) {
            roles.push(role.to_owned());
            roles.sort();
        }
        Ok(())
    }

    pub fn user(&self, name: &str) -> Option<&AuthUser> {
        self.users.iter().find(|user| user.name == name)
    }

    pub fn role(&self, name: &str) -> Option<&AuthRole> {
        self.roles.iter().find(|role| role.name == name)
    }

    pub fn is_root(&self, user: &str) -> bool {
        self.user(user).is_some_and(|user| user.roles.iter().any(|role| role == ROOT))
    }

    /// Returns whether a user may read or write all keys of a range.
    pub fn may(&self, user: &str, access: KeyAccess, span: &KeySpan) -> bool {
        if self.is_root(user) {
            return true;
        }
        let Some(user) = self.user(user) else { return false };
        let roles = user.roles.iter().filter_map(|role| self.role(role));
        let permitted: Vec<KeySpan> = roles
            .flat_map(|role| &role.permissions)
            .filter(|permission| match permission.perm_type() {
                Type::Readwrite => true,
                Type::Read => access == KeyAccess::Read,
                Type::Write => access == KeyAccess::Write,
            })
            .map(|permission| KeySpan::new(&permission.key, &permission.range_end))
            .collect();
        covers(permitted.iter(), span)
    }

    /// Rejects changes to root while authentication is enabled, so that root cannot be locked out.
    fn spare_root(&self, concerned: bool) -> Result<(), RequestRejection> {
        if self.enabled && concerned { Err(RequestRejection::INVALID_AUTH_MANAGEMENT) } else { Ok(()) }
    }

    fn user_mut(&mut self, name: &str) -> Result<&mut AuthUser, RequestRejection> {
        self.users.iter_mut().find(|user| user.name == name).ok_or(RequestRejection::USER_NOT_FOUND)
    }

    fn role_mut(&mut self, name: &str) -> Result<&mut AuthRole, RequestRejection> {
        self.roles.iter_mut().find(|role| role.name == name).ok_or(RequestRejection::ROLE_NOT_FOUND)
    }
}
