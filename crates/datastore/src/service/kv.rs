//! The KV service: range, put, delete, transaction and compaction.

use super::response::EncodedAnswer;
use super::{Gathered, Service, failed, unexpected};
use crate::check;
use crate::core::{Answer, Write};
use crate::limits::{Allowance, AnswerBudget, MAX_ANSWER_BYTES, MAX_WRITE_ANSWER_BYTES};
use crate::range::is_sorted;
use crate::refusal::Refusal;
use crate::snapshot::Snapshot;
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

impl Service {
    /// Acquires budget for the response of a write that may return many keys. The writer cannot wait for memory, so
    /// this happens before the write.
    async fn permit_for(&self, lists: bool) -> Result<Option<OwnedSemaphorePermit>, Refusal> {
        match lists {
            true => Ok(Some(self.answers.wait_for(MAX_WRITE_ANSWER_BYTES).await?)),
            false => Ok(None),
        }
    }
}

impl Service {
    /// Validates a transaction. With thousands of operations that takes milliseconds, so large ones are validated on
    /// a separate thread.
    async fn checked(&self, request: TxnRequest) -> Result<TxnRequest, Status> {
        if request.encoded_len() <= LARGE_TRANSACTION_BYTES {
            check::txn(&request)?;
            return Ok(request);
        }
        let _turn = self.checking.acquire().await.map_err(|_| Refusal::STOPPED)?;
        let check = move || check::txn(&request).map(|()| request);
        match tokio::task::spawn_blocking(check).await {
            Ok(checked) => Ok(checked?),
            Err(_) => Err(Refusal::STORAGE_FAILED.into()),
        }
    }

    /// Rejects a deletion that is certain to exceed the limits. The writer checks again, but all other writes wait
    /// for the writer.
    async fn within_limits(&self, request: DeleteRangeRequest) -> Result<DeleteRangeRequest, Status> {
        let measure = move |snapshot: &Snapshot| Ok((snapshot.measure_delete(&request)?, request));
        let (outcome, request) = self.read(measure).await?;
        outcome?;
        Ok(request)
    }
}

#[tonic::async_trait]
impl Kv for Service {
    async fn range(&self, request: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        let caller = self.caller(&request)?;
        let request = request.into_inner();
        check::range(&request)?;
        caller.check_range(&request)?;
        let mut gathered = match request.range_end.is_empty() {
            // A single key is cheaper to look up than to pass to another thread.
            true => {
                let mut allowance = Allowance::new(MAX_ANSWER_BYTES);
                let answer = self.latest.get().range(&request, &mut allowance).map_err(failed)??;
                Gathered { answer, share: self.answers.share(allowance.used()) }
            }
            false if is_sorted(&request) => {
                self.gather(move |snapshot, allowance| snapshot.range(&request, allowance)).await?
            }
            false => {
                let list =
                    move |snapshot: &Snapshot, allowance: &mut _| snapshot.encoded_range(&request, allowance);
                let Gathered { answer, share } = self.gather(list).await?;
                // Sent instead of the message, which stays empty.
                let mut response = Response::new(RangeResponse::default());
                response.extensions_mut().insert(EncodedAnswer { message: answer, share });
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
        match self.writer.write(Write::Delete(request)).await? {
            Answer::Delete(mut answer) => {
                self.complete(&mut answer.header);
                let size = answer.encoded_len();
                Ok(Gathered { answer, share: AnswerBudget::shrink(permit, size) }.into_response())
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
            match self.writer.write(Write::Txn(request)).await? {
                Answer::Txn(answer) => {
                    let size = answer.encoded_len();
                    Gathered { answer, share: AnswerBudget::shrink(permit, size) }
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
