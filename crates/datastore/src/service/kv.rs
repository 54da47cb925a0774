//! The KV service: range, put, delete, transaction and compaction.

use super::response::EncodedRangeResponse;
use super::{CollectedResponse, StoreService, failed, unexpected};
use crate::check;
use crate::core::{WriteRequest, WriteResponse};
use crate::limits::{MAX_RESPONSE_BYTES, MAX_WRITE_RESPONSE_BYTES, ResponseAllowance, ResponseBudget};
use crate::range::is_sorted;
use crate::refusal::RequestRejection;
use crate::snapshot::StoreSnapshot;
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
    async fn permit_for(&self, lists: bool) -> Result<Option<OwnedSemaphorePermit>, RequestRejection> {
        match lists {
            true => Ok(Some(self.answers.wait_for(MAX_WRITE_RESPONSE_BYTES).await?)),
            false => Ok(None),
        }
    }
}

impl StoreService {
    /// Validates a transaction. With thousands of operations that takes milliseconds, so large ones are validated on
    /// a separate thread.
    async fn checked(&self, request: TxnRequest) -> Result<TxnRequest, Status> {
        if request.encoded_len() <= LARGE_TRANSACTION_BYTES {
            check::txn(&request)?;
            return Ok(request);
        }
        let _turn = self.checking.acquire().await.map_err(|_| RequestRejection::STOPPED)?;
        let check = move || check::txn(&request).map(|()| request);
        match tokio::task::spawn_blocking(check).await {
            Ok(checked) => Ok(checked?),
            Err(_) => Err(RequestRejection::STORAGE_FAILED.into()),
        }
    }

    /// Rejects a deletion that is certain to exceed the limits. The writer checks again, but all other writes wait
    /// for the writer.
    async fn within_limits(&self, request: DeleteRangeRequest) -> Result<DeleteRangeRequest, Status> {
        let measure = move |snapshot: &StoreSnapshot| Ok((snapshot.measure_delete(&request)?, request));
        let (outcome, request) = self.read(measure).await?;
        outcome?;
        Ok(request)
    }
}

#[tonic::async_trait]
impl Kv for StoreService {
    async fn range(&self, request: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        let caller = self.caller(&request)?;
        let request = request.into_inner();
        check::range(&request)?;
        caller.check_range(&request)?;
        let mut gathered = match request.range_end.is_empty() {
            // A single key is cheaper to look up than to pass to another thread.
            true => {
                let mut allowance = ResponseAllowance::new(MAX_RESPONSE_BYTES);
                let answer = self.latest.get().range(&request, &mut allowance).map_err(failed)??;
                CollectedResponse { answer, share: self.answers.share(allowance.used()) }
            }
            false if is_sorted(&request) => {
                self.gather(move |snapshot, allowance| snapshot.range(&request, allowance)).await?
            }
            false => {
                let list = move |snapshot: &StoreSnapshot, allowance: &mut _| {
                    snapshot.encoded_range(&request, allowance)
                };
                let CollectedResponse { answer, share } = self.gather(list).await?;
                // Sent instead of the message, which stays empty.
                let mut response = Response::new(RangeResponse::default());
                response.extensions_mut().insert(EncodedRangeResponse { message: answer, share });
                return Ok(response);
            }
        };
        self.complete(&mut gathered.answer.header);
        Ok(gathered.into_response())
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        let caller = self.caller(&request)?;
        let request = request.into_inner();
        check::put(&request)?;
        caller.check_put(&request)?;
        self.check_leases(&caller, [request.lease]).await?;
        check::size(request.encoded_len())?;
        match self.writer.write(WriteRequest::Put(request)).await? {
            WriteResponse::Put(mut response) => {
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
        let caller = self.caller(&request)?;
        let request = request.into_inner();
        check::delete(&request)?;
        caller.check_delete(&request)?;
        check::size(request.encoded_len())?;
        let lists = request.prev_kv && !request.range_end.is_empty();
        let permit = self.permit_for(lists).await?;
        let request = match lists {
            true => self.within_limits(request).await?,
            false => request,
        };
        match self.writer.write(WriteRequest::Delete(request)).await? {
            WriteResponse::Delete(mut answer) => {
                self.complete(&mut answer.header);
                let size = answer.encoded_len();
                Ok(CollectedResponse { answer, share: ResponseBudget::shrink(permit, size) }.into_response())
            }
            other => Err(unexpected(other)),
        }
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        let caller = self.caller(&request)?;
        let request = self.checked(request.into_inner()).await?;
        caller.check_txn(&request)?;
        let mut gathered = if check::is_read_only(&request) {
            self.gather(move |snapshot, allowance| snapshot.txn(&request, allowance)).await?
        } else {
            self.check_leases(&caller, check::leases(&request)).await?;
            check::size(request.encoded_len())?;
            let permit = self.permit_for(check::lists(&request)).await?;
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

    async fn compact(
        &self,
        request: Request<CompactionRequest>,
    ) -> Result<Response<CompactionResponse>, Status> {
        self.caller(&request)?;
        let CompactionRequest { revision, physical } = request.into_inner();
        let answer = match physical {
            true => self.writer.compact_physically(revision).await?,
            false => self.writer.write(WriteRequest::Compact { revision }).await?,
        };
        match answer {
            WriteResponse::Done { revision } => {
                Ok(Response::new(CompactionResponse { header: self.header(revision) }))
            }
            other => Err(unexpected(other)),
        }
    }
}
