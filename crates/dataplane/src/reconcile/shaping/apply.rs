//! Creates and removes buckets, IFB devices and redirections.

use super::diff::ShapingOperation;
use crate::engine::DataplaneEngine;
use crate::kernel::{KernelRejection, RejectionKind};
use std::collections::BTreeMap;

/// Limit of steps: an interface needs a device, its bucket and a redirection, and possibly removals before them.
const MAX_SHAPING_STEPS: usize = 8;

impl DataplaneEngine {
    pub(crate) async fn apply_shaping(&mut self) {
        if !self.core.is_shaping_due() {
            return;
        }
        let mut errors = BTreeMap::new();
        for _ in 0..MAX_SHAPING_STEPS {
            let mut work = self.core.shaping_work();
            work.retain(|(interface, _)| !errors.contains_key(interface));
            if work.is_empty() {
                break;
            }
            for (interface, operation) in work {
                if let Err(reason) = self.shape(&interface, &operation).await {
                    errors.insert(interface, reason);
                }
            }
            // Notifications of our own changes are filtered out.
            match self.kernel.qdiscs().await {
                Ok(qdiscs) => self.core.qdiscs_are(qdiscs),
                Err(error) => {
                    self.stale.qdiscs = true;
                    tracing::warn!(%error, "cannot read traffic control; will retry");
                    break;
                }
            }
        }
        self.core.shaping_done(errors);
    }

    async fn shape(&mut self, interface: &str, operation: &ShapingOperation) -> Result<(), String> {
        let now = self.started.elapsed();
        let (outcome, harmless) = match operation {
            ShapingOperation::SetBucket { device, bucket } => {
                let set = self.kernel.set_bucket(*device, interface, bucket).await;
                if set.is_ok() {
                    self.core.bucket_written(*device, *bucket);
                }
                (set.map_err(|refusal| explained(refusal, "sch_tbf")), None)
            }
            ShapingOperation::DeleteBucket { device } => {
                (self.kernel.delete_bucket(*device).await, Some(RejectionKind::Missing))
            }
            ShapingOperation::CreateDevice { name, mtu } => {
                let made = self.kernel.create_ifb(name, *mtu).await;
                (made.map_err(|refusal| explained(refusal, "ifb")), Some(RejectionKind::Exists))
            }
            ShapingOperation::SetUp { device } => (self.kernel.set_link_up(*device).await, None),
            ShapingOperation::Redirect { device, to } => {
                let made = self.kernel.redirect(*device, interface, *to).await;
                (made.map_err(|refusal| explained(refusal, "cls_u32, act_mirred or sch_ingress")), None)
            }
            ShapingOperation::DeleteRedirection { device } => {
                (self.kernel.delete_redirection(*device).await, Some(RejectionKind::Missing))
            }
            ShapingOperation::DeleteDevice { device } => {
                (self.kernel.delete_link(*device).await, Some(RejectionKind::Missing))
            }
        };
        let looked = match operation {
            ShapingOperation::CreateDevice { name, .. } => {
                self.kernel.link_named(name).await.map(|link| link.map(|link| (link.index, Some(link))))
            }
            ShapingOperation::SetUp { device } | ShapingOperation::DeleteDevice { device } => {
                self.kernel.link(*device).await.map(|link| Some((*device, link)))
            }
            _ => Ok(None),
        };
        if let Some((index, link)) = looked.map_err(|error| error.to_string())? {
            self.core.link_is(index, link, now);
        }
        match outcome {
            Err(refusal) if Some(refusal.kind) != harmless => Err(refusal.reason),
            _ => Ok(()),
        }
    }
}

/// Names the kernel module that may be missing; the kernel's own message is generic.
fn explained(refusal: KernelRejection, module: &str) -> KernelRejection {
    match refusal.kind {
        RejectionKind::Unsupported | RejectionKind::Missing => KernelRejection {
            reason: format!("this kernel may lack {module}; load or install it ({})", refusal.reason),
            ..refusal
        },
        _ => refusal,
    }
}
