//! Range, put, delete, transaction and compaction.

use super::{Service, failed, unexpected};
use crate::check;
use crate::core::{Answer, Write};
use prost::Message;
use tonic::{Request, Response, Status};
use tortie_etcd_proto::etcdserverpb::kv_server::Kv;
use tortie_etcd_proto::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse,
    RangeRequest, RangeResponse, TxnRequest, TxnResponse,
};

#[tonic::async_trait]
impl Kv for Service {
    async fn range(&self, request: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        let request = request.into_inner();
        check::range(&request)?;
        let outcome = match request.range_end.is_empty() {
            // One key: cheaper to look up than to hand to another thread.
            true => self.latest.get().range(&request).map_err(failed)?,
            false => self.read(move |snapshot| snapshot.range(&request)).await?,
        };
        let mut response = outcome?;
        self.complete(&mut response.header);
        Ok(Response::new(response))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        let request = request.into_inner();
        check::put(&request)?;
        check::size(request.encoded_len())?;
        match self.writer.write(Write::Put(request)).await? {
            Answer::Put(mut response) => {
                self.complete(&mut response.header);
                Ok(Response::new(response))
            }
            other => Err(unexpected(other)),
        }
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        let request = request.into_inner();
        check::delete(&request)?;
        check::size(request.encoded_len())?;
        match self.writer.write(Write::Delete(request)).await? {
            Answer::Delete(mut response) => {
                self.complete(&mut response.header);
                Ok(Response::new(response))
            }
            other => Err(unexpected(other)),
        }
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        let request = request.into_inner();
        check::txn(&request)?;
        let mut response = if check::is_read_only(&request) {
            self.read(move |snapshot| snapshot.txn(&request)).await??
        } else {
            check::size(request.encoded_len())?;
            match self.writer.write(Write::Txn(request)).await? {
                Answer::Txn(response) => response,
                other => return Err(unexpected(other)),
            }
        };
        self.complete(&mut response.header);
        Ok(Response::new(response))
    }

    async fn compact(
        &self,
        request: Request<CompactionRequest>,
    ) -> Result<Response<CompactionResponse>, Status> {
        let CompactionRequest { revision, physical } = request.into_inner();
        let answer = match physical {
            true => self.writer.compact_physically(revision).await?,
            false => self.writer.write(Write::Compact { revision }).await?,
        };
        match answer {
            Answer::Done { revision } => {
                Ok(Response::new(CompactionResponse { header: self.header(revision) }))
            }
            other => Err(unexpected(other)),
        }
    }
}
