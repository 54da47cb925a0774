#![doc = include_str!("../README.md")]

mod conflict;
mod fields_v1;
mod managed;
mod merge_schema;
mod operation;
mod patch;
mod path;
mod set;
mod walk;

pub use conflict::ApplyConflict;
pub use managed::{ManagedFields, ManagedFieldsError, ManagerId, ManagerOperation};
pub use merge_schema::{ListMergeType, MergeSchema, ScalarKind};
pub use operation::{ApplyError, ApplyResult, FieldManager, apply, update};
pub use patch::{
    BoundedPatchError, MAX_COPIED_BYTES, MAX_PATCH_OPERATIONS, MAX_PATCHED_DEPTH, apply_json_patch,
    apply_merge_patch, fits_json,
};
pub use path::{FieldPath, PathElement};
pub use set::FieldSet;
pub use walk::{
    FieldComparison, SchemaProblem, SchemaViolation, compare, equal, list_fields, merge, remove, validate,
};
