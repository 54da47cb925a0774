//! The gRPC services: Envoy's external authorization in three versions, and the health of Dikastes.

use crate::check::PolicyChecker;
use crate::proto::dikastes::healthz_server::Healthz;
use crate::proto::dikastes::{HealthCheckRequest, HealthCheckResponse};
use crate::proto::v3::{CheckRequest, CheckResponse};
use crate::proto::{v2, v2alpha, v3};
use std::sync::Arc;
use tonic::{Request, Response, Status};

#[derive(Clone, Debug)]
pub struct CheckService {
    pub checker: Arc<PolicyChecker>,
}

/// Implements one version of the service. The messages of all versions have the same fields.
macro_rules! serve_authorization {
    ($($version:ident)*) => {
        $(
            #[tonic::async_trait]
            impl $version::authorization_server::Authorization for CheckService {
                async fn check(
                    &self,
                    request: Request<CheckRequest>,
                ) -> Result<Response<CheckResponse>, Status> {
                    Ok(Response::new(self.checker.check(request.get_ref())))
                }
            }
        )*
    };
}

serve_authorization! { v3 v2 v2alpha }

#[tonic::async_trait]
impl Healthz for CheckService {
    async fn check_readiness(
        &self,
        _: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        Ok(Response::new(HealthCheckResponse { healthy: self.checker.state().is_in_sync() }))
    }

    async fn check_liveness(
        &self,
        _: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        Ok(Response::new(HealthCheckResponse { healthy: true }))
    }
}
