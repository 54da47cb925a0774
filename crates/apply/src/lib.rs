//! Server-side apply with the semantics of Kubernetes: who owns which field of an object, how the configurations of
//! several appliers merge into one object, and where they conflict.
//!
//! `shape` holds the merge rules of a schema; `path` and `set` are fields and sets of fields; `walk` compares, merges
//! and prunes values along a shape; `managed` is the record of owners (`metadata.managedFields`); `operation` applies
//! a write to the object and the record. `patch` applies JSON patches and merge patches within bounds. All functions
//! depend only on their arguments: no I/O, no clock.

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
