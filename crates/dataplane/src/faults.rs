//! Fault injection: makes kernel requests fail for objects that a test selects. Exists only in builds with the feature
//! `fault-injection`; in other builds [`KernelFaults`] is an empty type that never fails.

use crate::failure::KernelObject;
#[cfg(feature = "fault-injection")]
use std::path::PathBuf;
#[cfg(feature = "fault-injection")]
use std::sync::Arc;

/// Returns the errno with which creating or changing an object fails, or `None` if it succeeds.
#[cfg(feature = "fault-injection")]
type FaultPredicate = dyn Fn(&KernelObject) -> Option<i32> + Send + Sync;

/// The faults to inject in a namespace. Clones share them.
#[derive(Clone, Default)]
pub struct KernelFaults {
    #[cfg(feature = "fault-injection")]
    refuse: Option<Arc<FaultPredicate>>,
}

#[cfg(feature = "fault-injection")]
impl KernelFaults {
    pub fn new(refuse: impl Fn(&KernelObject) -> Option<i32> + Send + Sync + 'static) -> KernelFaults {
        KernelFaults { refuse: Some(Arc::new(refuse)) }
    }

    /// Fails requests for objects whose displayed [`KernelObject`] starts with a line of the file, for example `route
    /// 10.65.0.2/32` or `sysctl net.ipv4.conf.cali`. The file is read on each request; a missing file means no faults.
    pub fn listed_in(path: impl Into<PathBuf>) -> KernelFaults {
        const EINVAL: i32 = 22;
        let path = path.into();
        KernelFaults::new(move |object| {
            let list = std::fs::read_to_string(&path).ok()?;
            let text = object.to_string();
            let mut lines = list.lines().filter(|line| !line.trim().is_empty());
            lines.any(|line| text.starts_with(line.trim())).then_some(EINVAL)
        })
    }

    /// Returns the errno to inject for an object.
    pub(crate) fn errno(&self, object: impl FnOnce() -> KernelObject) -> Option<i32> {
        self.refuse.as_ref().and_then(|refuse| refuse(&object()))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.refuse.is_none()
    }
}

#[cfg(not(feature = "fault-injection"))]
impl KernelFaults {
    pub(crate) fn errno(&self, _: impl FnOnce() -> KernelObject) -> Option<i32> {
        None
    }

    pub(crate) fn is_empty(&self) -> bool {
        true
    }
}

impl KernelFaults {
    /// Returns the injected error in the form of a kernel response.
    pub(crate) fn check(&self, object: impl FnOnce() -> KernelObject) -> nlink::Result<()> {
        self.errno(object).map_or(Ok(()), |errno| Err(nlink::Error::from_errno(-errno)))
    }
}

impl std::fmt::Debug for KernelFaults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_empty() { "no faults" } else { "faults" })
    }
}
