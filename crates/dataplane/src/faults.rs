//! Makes the kernel refuse what a test names. Only in builds with the feature `fault-injection`; in others nothing of it
//! is there, and [`Faults`] is an empty type that refuses nothing.

use crate::failure::KernelObject;
#[cfg(feature = "fault-injection")]
use std::path::PathBuf;
#[cfg(feature = "fault-injection")]
use std::sync::Arc;

/// Says for an object with which errno the kernel refuses to make or change it.
#[cfg(feature = "fault-injection")]
type Refuse = dyn Fn(&KernelObject) -> Option<i32> + Send + Sync;

/// What a namespace's kernel refuses. Clones share it.
#[derive(Clone, Default)]
pub struct Faults {
    #[cfg(feature = "fault-injection")]
    refuse: Option<Arc<Refuse>>,
}

#[cfg(feature = "fault-injection")]
impl Faults {
    pub fn new(refuse: impl Fn(&KernelObject) -> Option<i32> + Send + Sync + 'static) -> Faults {
        Faults { refuse: Some(Arc::new(refuse)) }
    }

    /// Refuses what begins as a line of a file does, each line being an object as [`KernelObject`] is displayed:
    /// `route 10.65.0.2/32`, `sysctl net.ipv4.conf.cali`. The file is read anew each time; none means no faults.
    pub fn listed_in(path: impl Into<PathBuf>) -> Faults {
        const EINVAL: i32 = 22;
        let path = path.into();
        Faults::new(move |object| {
            let list = std::fs::read_to_string(&path).ok()?;
            let text = object.to_string();
            let mut lines = list.lines().filter(|line| !line.trim().is_empty());
            lines.any(|line| text.starts_with(line.trim())).then_some(EINVAL)
        })
    }

    /// The errno with which an object is refused.
    pub(crate) fn errno(&self, object: impl FnOnce() -> KernelObject) -> Option<i32> {
        self.refuse.as_ref().and_then(|refuse| refuse(&object()))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.refuse.is_none()
    }
}

#[cfg(not(feature = "fault-injection"))]
impl Faults {
    pub(crate) fn errno(&self, _: impl FnOnce() -> KernelObject) -> Option<i32> {
        None
    }

    pub(crate) fn is_empty(&self) -> bool {
        true
    }
}

impl Faults {
    /// An error as the kernel's answer would be.
    pub(crate) fn check(&self, object: impl FnOnce() -> KernelObject) -> nlink::Result<()> {
        self.errno(object).map_or(Ok(()), |errno| Err(nlink::Error::from_errno(-errno)))
    }
}

impl std::fmt::Debug for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_empty() { "no faults" } else { "faults" })
    }
}
