//! Writes the settings of workload interfaces.

use crate::engine::DataplaneEngine;
use crate::sysctl;

impl DataplaneEngine {
    pub(crate) async fn apply_sysctls(&mut self) {
        for (index, settings) in self.core.conf_work() {
            let outcome = sysctl::write(&self.host, settings).await;
            let now = self.started.elapsed();
            if let Ok(link) = self.kernel.link(index).await {
                self.core.link_is(index, link, now);
            }
            self.core.conf_written(index, outcome.map_err(Into::into));
        }
    }
}
