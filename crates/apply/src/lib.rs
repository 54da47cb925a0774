#![doc = include_str!("../README.md")]

mod conflict;
mod fields_v1;
mod managed;
mod operation;
mod patch;
mod path;
mod set;
mod shape;
mod walk;

pub use conflict::ApplyConflict;
pub use managed::{ManagedFields, ManagerId, ManagerOperation};
pub use operation::{ApplyError, ApplyResult, FieldManager, apply, update};
pub use patch::{
    BoundedPatchError, MAX_COPIED_BYTES, MAX_PATCH_OPERATIONS, MAX_PATCHED_DEPTH, apply_json_patch,
    apply_merge_patch, fits_json,
};
pub use path::{FieldPath, PathElement};
pub use set::FieldSet;
pub use shape::{ListMergeType, MergeSchema, ScalarKind};
pub use walk::{FieldComparison, compare, equal, merge, remove, set_of, validate};
