//! JSON patches (RFC 6902) and merge patches (RFC 7386) with bounded cost. Without bounds, a patch of a few kilobytes
//! can copy copies until memory is exhausted, or nest values until dropping them overflows the stack.

use json_patch::jsonptr::Pointer;
use json_patch::{PatchError as OperationError, PatchOperation};
use serde_json::Value;
use std::io;

/// The limit of kube-apiserver: `maxJSONPatchOperations`.
pub const MAX_PATCH_OPERATIONS: usize = 10_000;
/// Total size as JSON of the values that `copy` duplicates: as much as an API server accepts in a body.
pub const MAX_COPIED_BYTES: usize = 3 << 20;
/// Nesting depth of a patched object, the same as that of a document: values are cloned, compared, printed and
/// dropped recursively.
pub const MAX_PATCHED_DEPTH: usize = 40;
/// Number of values that the operations of one patch inspect or shift: an insertion at the front of a list moves all
/// its elements.
pub const MAX_PATCH_STEPS: usize = 20_000_000;

#[derive(Debug, thiserror::Error)]
pub enum BoundedPatchError {
    #[error("the allowed maximum operations in a JSON patch is {MAX_PATCH_OPERATIONS}, got {0}")]
    TooManyOperations(usize),
    #[error("the values that the patch copies have more than {MAX_COPIED_BYTES} bytes in total")]
    CopiesTooLarge,
    #[error("the patched object would be nested more than {MAX_PATCHED_DEPTH} levels deep")]
    TooDeep,
    #[error("the operations of the patch inspect or move more than {MAX_PATCH_STEPS} values")]
    TooManySteps,
    #[error(transparent)]
    Operation(#[from] OperationError),
}

/// Returns the object after all operations of a JSON patch.
pub fn apply_json_patch(object: &Value, operations: &[PatchOperation]) -> Result<Value, BoundedPatchError> {
    if operations.len() > MAX_PATCH_OPERATIONS {
        return Err(BoundedPatchError::TooManyOperations(operations.len()));
    }
    let mut patched = object.clone();
    let mut budget = PatchBudget { steps: MAX_PATCH_STEPS, copied: MAX_COPIED_BYTES };
    for (index, operation) in operations.iter().enumerate() {
        budget.charge(&patched, operation)?;
        // The caller keeps the original: an undo log would hold every value that was ever replaced.
        json_patch::patch_unsafe(&mut patched, std::slice::from_ref(operation)).map_err(|mut error| {
            error.operation = index;
            error
        })?;
    }
    Ok(patched)
}

/// Returns the object after a merge patch.
pub fn apply_merge_patch(object: &Value, patch: &Value) -> Result<Value, BoundedPatchError> {
    let mut budget = PatchBudget { steps: MAX_PATCH_STEPS, copied: 0 };
    budget.inspect(patch, MAX_PATCHED_DEPTH)?;
    let mut patched = object.clone();
    json_patch::merge(&mut patched, patch);
    Ok(patched)
}

/// Returns whether a value has at most `limit` bytes as JSON.
pub fn fits_json(value: &Value, limit: usize) -> bool {
    measure_json(value, limit).is_some()
}

/// Cost that the remaining operations of a patch may cause.
struct PatchBudget {
    steps: usize,
    copied: usize,
}

impl PatchBudget {
    /// Charges an operation before it is applied. An operation on a missing path costs nothing, since applying it
    /// fails.
    fn charge(&mut self, object: &Value, operation: &PatchOperation) -> Result<(), BoundedPatchError> {
        match operation {
            PatchOperation::Add(add) => {
                self.shift(object, &add.path)?;
                self.place(&add.value, &add.path)
            }
            PatchOperation::Replace(replace) => self.place(&replace.value, &replace.path),
            PatchOperation::Remove(remove) => self.shift(object, &remove.path),
            PatchOperation::Move(shifted) => {
                self.shift(object, &shifted.from)?;
                self.shift(object, &shifted.path)?;
                match object.pointer(shifted.from.as_str()) {
                    Some(value) => self.place(value, &shifted.path),
                    None => Ok(()),
                }
            }
            PatchOperation::Copy(copy) => {
                self.shift(object, &copy.path)?;
                let Some(value) = object.pointer(copy.from.as_str()) else { return Ok(()) };
                self.place(value, &copy.path)?;
                let size = measure_json(value, self.copied).ok_or(BoundedPatchError::CopiesTooLarge)?;
                self.copied -= size;
                Ok(())
            }
            // Comparing takes no longer than parsing the expected value.
            PatchOperation::Test(_) => Ok(()),
        }
    }

    /// Checks the nesting depth of a value at the path where it is inserted.
    fn place(&mut self, value: &Value, path: &Pointer) -> Result<(), BoundedPatchError> {
        let levels = MAX_PATCHED_DEPTH.checked_sub(path.count()).ok_or(BoundedPatchError::TooDeep)?;
        self.inspect(value, levels)
    }

    /// Charges every value and checks the depth. Recurses no deeper than `levels`.
    fn inspect(&mut self, value: &Value, levels: usize) -> Result<(), BoundedPatchError> {
        self.spend(1)?;
        match (value, levels.checked_sub(1)) {
            (Value::Array(items), Some(levels)) => {
                items.iter().try_for_each(|item| self.inspect(item, levels))
            }
            (Value::Object(fields), Some(levels)) => {
                fields.values().try_for_each(|field| self.inspect(field, levels))
            }
            (Value::Array(_) | Value::Object(_), None) => Err(BoundedPatchError::TooDeep),
            _ => Ok(()),
        }
    }

    /// Charges the elements of a list that an insertion or a removal may move.
    fn shift(&mut self, object: &Value, path: &Pointer) -> Result<(), BoundedPatchError> {
        let Some((list, index)) = path.split_back() else { return Ok(()) };
        match object.pointer(list.as_str()) {
            Some(Value::Array(items)) if index.encoded() != "-" => self.spend(items.len()),
            _ => Ok(()),
        }
    }

    fn spend(&mut self, steps: usize) -> Result<(), BoundedPatchError> {
        self.steps = self.steps.checked_sub(steps).ok_or(BoundedPatchError::TooManySteps)?;
        Ok(())
    }
}

/// Returns the size of a value as JSON, or `None` if it is more than `limit`.
fn measure_json(value: &Value, limit: usize) -> Option<usize> {
    let mut counter = ByteCounter { left: limit };
    // Writing a value fails only when the counter is exhausted.
    serde_json::to_writer(&mut counter, value).ok()?;
    Some(limit - counter.left)
}

struct ByteCounter {
    left: usize,
}

impl io::Write for ByteCounter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.left = self.left.checked_sub(bytes.len()).ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
