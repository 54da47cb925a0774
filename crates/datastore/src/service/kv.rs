//! The KV service: range, put, delete, transaction and compaction.

use super::response::EncodedRangeResponse;
use super::{CollectedResponse, GrpcResult, StoreService, unexpected};
use crate::core::{WriteRequest, WriteResponse};
use crate::limits::{MAX_RESPONSE_BYTES, MAX_WRITE_RESPONSE_BYTES, ResponseAllowance, ResponseBudget};
use crate::range::is_sorted;
use crate::rejection::RequestRejection;
use crate::validate;
use prost::Message;
use tokio::sync::OwnedSemaphorePermit;
use tonic::{Request, Response, Status};
use tortie_etcd_proto::etcdserverpb::kv_server::Kv;
use tortie_etcd_proto::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse,
    RangeRequest, RangeResponse, TxnRequest, TxnResponse,
};

/// Size from which a transaction is validated on a separate thread.
const LARGE_TRANSACTION_BYTES: usize = 64 << 10;

impl StoreService {
    /// Acquires budget for the response of a write that may return many keys. The writer cannot wait for memory, so
    /// this happens before the write.
    async fn reserve_response(&self, lists: bool) -> Result<Option<OwnedSemaphorePermit>, RequestRejection> {
        if !lists {
            return Ok(None);
        }
        Ok(Some(self.answers.wait_for(MAX_WRITE_RESPONSE_BYTES).await?))
    }

    /// Validates a transaction. With thousands of operations that takes milliseconds, so large ones are validated on
    /// a separate thread.
    async fn validate_txn(&self, request: TxnRequest) -> Result<TxnRequest, Status> {
        if request.encoded_len() <= LARGE_TRANSACTION_BYTES {
            validate::txn(&request)?;
            return Ok(request);
        }
        let _turn = self.checking.acquire().await.map_err(|_| RequestRejection::STOPPED)?;
        let validated = tokio::task::spawn_blocking(move || validate::txn(&request).map(|()| request)).await;
        Ok(validated.map_err(|_| RequestRejection::STORAGE_FAILED)??)
    }

    /// Rejects a deletion that is certain to exceed the limits. The writer checks again, but all other writes wait
    /// for the writer.
    async fn check_delete(&self, request: DeleteRangeRequest) -> Result<DeleteRangeRequest, Status> {
        self.read(move |snapshot| snapshot.check_delete(&request).map(|()| request)).await
    }
}

#[tonic::async_trait]
impl Kv for StoreService {
    async fn range(&self, request: Request<RangeRequest>) -> GrpcResult<RangeResponse> {
        let caller = self.caller(&request)?;
        let request = request.into_inner();
        validate::range(&request)?;
        caller.check_range(&request)?;
        let mut gathered = if request.range_end.is_empty() {
            // A single key is cheaper to look up than to pass to another thread.
            let mut allowance = ResponseAllowance::new(MAX_RESPONSE_BYTES);
            let answer = self.latest.get().range(&request, &mut allowance)?;
            CollectedResponse { answer, share: self.answers.share(allowance.used()) }
        } else if is_sorted(&request) {
            self.gather(move |snapshot, allowance| snapshot.range(&request, allowance)).await?
        } else {
            let gathered =
                self.gather(move |snapshot, allowance| snapshot.encoded_range(&request, allowance));
            let CollectedResponse { answer: message, share } = gathered.await?;
            // Sent instead of the message, which stays empty.
            let mut response = Response::new(RangeResponse::default());
            response.extensions_mut().insert(EncodedRangeResponse { message, share });
            return Ok(response);
        };
        self.complete(&mut gathered.answer.header);
        Ok(gathered.into_response())
    }

    async fn put(&self, request: Request<PutRequest>) -> GrpcResult<PutResponse> {
        let caller = self.caller(&request)?;
        let request = request.into_inner();
        validate::put(&request)?;
        caller.check_put(&request)?;
        self.check_leases(&caller, [request.lease]).await?;
        validate::size(request.encoded_len())?;
        match self.writer.write(WriteRequest::Put(request)).await? {
            WriteResponse::Put(mut response) => {
                self.complete(&mut response.header);
                Ok(Response::new(response))
            }
            other => Err(unexpected(other)),
        }
    }

    async fn delete_range(&self, request: Request<DeleteRangeRequest>) -> GrpcResult<DeleteRangeResponse> {
        let caller = self.caller(&request)?;
        let request = request.into_inner();
        validate::delete(&request)?;
        caller.check_delete(&request)?;
        validate::size(request.encoded_len())?;
        let lists = request.prev_kv && !request.range_end.is_empty();
        let permit = self.reserve_response(lists).await?;
        let request = if lists { self.check_delete(request).await? } else { request };
        match self.writer.write(WriteRequest::Delete(request)).await? {
            WriteResponse::Delete(mut answer) => {
                self.complete(&mut answer.header);
                let size = answer.encoded_len();
                Ok(CollectedResponse { answer, share: ResponseBudget::shrink(permit, size) }.into_response())
            }
            other => Err(unexpected(other)),
        }
    }

    async fn txn(&self, request: Request<TxnRequest>) -> GrpcResult<TxnResponse> {
        let caller = self.caller(&request)?;
        let request = self.validate_txn(request.into_inner()).await?;
        caller.check_txn(&request)?;
        let mut gathered = if validate::is_read_only(&request) {
            self.gather(move |snapshot, allowance| snapshot.txn(&request, allowance)).await?
        } else {
            self.check_leases(&caller, validate::leases(&request)).await?;
            validate::size(request.encoded_len())?;
            let permit = self.reserve_response(validate::may_list(&request)).await?;
            match self.writer.write(WriteRequest::Txn(request)).await? {
                WriteResponse::Txn(answer) => {
                    let size = answer.encoded_len();
                    CollectedResponse { answer, share: ResponseBudget::shrink(permit, size) }
                }
                other => return Err(unexpected(other)),
            }
        };
        self.complete(&mut gathered.answer.header);
        Ok(gathered.into_response())
    }

    async fn compact(&self, request: Request<CompactionRequest>) -> GrpcResult<CompactionResponse> {
        self.caller(&request)?;
        let CompactionRequest { revision, physical } = request.into_inner();
        let answer = if physical {
            self.writer.compact_physically(revision).await?
        } else {
            self.writer.write(WriteRequest::Compact { revision }).await?
        };
        match answer {
            WriteResponse::Done { revision } => {
                Ok(Response::new(CompactionResponse { header: self.header(revision) }))
            }
            other => Err(unexpected(other)),
        }
    }
}
