//! A watch stream to one member. It ends at the first failure; `crate::watch` resumes it.

use super::EtcdCluster;
use super::failure::EtcdFailure;
use super::kv::prefix_end;
use super::member::{EtcdMember, MemberConnection};
use crate::{StoreError, StoreResult};
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::{Request, Streaming};
use tortie_etcd_proto::etcdserverpb::watch_client::WatchClient;
use tortie_etcd_proto::etcdserverpb::watch_request::RequestUnion;
use tortie_etcd_proto::etcdserverpb::{
    WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
};

const MAX_WATCH_MESSAGE_BYTES: usize = 1 << 30;

pub(crate) struct WatchStream {
    cluster: Arc<EtcdCluster>,
    member: Arc<EtcdMember>,
    connection: MemberConnection,
    token: Option<String>,
    requests: mpsc::Sender<WatchRequest>,
    responses: Streaming<WatchResponse>,
}

/// Opens a watch on all keys with the prefix, from a revision on.
pub(crate) async fn open_watch(
    cluster: &Arc<EtcdCluster>,
    prefix: &str,
    from: i64,
) -> StoreResult<WatchStream> {
    let Some(member) = cluster.current() else {
        return Err(StoreError::Config("no etcd endpoints specified".into()));
    };
    let connection = member.connection();
    let limit = cluster.limits.request;
    let failure = match tokio::time::timeout(limit, open(cluster, &member, &connection, prefix, from)).await {
        Ok(Ok(stream)) => return Ok(stream),
        Ok(Err(failure)) => failure,
        Err(_) => {
            member.discard(&connection);
            EtcdFailure::silent(&member.endpoint, limit)
        }
    };
    cluster.leave(&member);
    Err(failure.into_error())
}

async fn open(
    cluster: &Arc<EtcdCluster>,
    member: &Arc<EtcdMember>,
    connection: &MemberConnection,
    prefix: &str,
    from: i64,
) -> std::result::Result<WatchStream, EtcdFailure> {
    let (requests, queue) = mpsc::channel(4);
    let create = WatchCreateRequest {
        key: Bytes::copy_from_slice(prefix.as_bytes()),
        range_end: prefix_end(prefix.as_bytes()),
        start_revision: from,
        progress_notify: true,
        ..Default::default()
    };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    // Cannot fail: the queue is new and has room for several requests.
    let _ = requests.try_send(create);
    let mut request = Request::new(ReceiverStream::new(queue));
    let token = cluster.authorise(member, connection, &mut request).await?;
    // With this header, a member without a leader ends the stream instead of sending nothing.
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    let mut client =
        WatchClient::new(connection.channel.clone()).max_decoding_message_size(MAX_WATCH_MESSAGE_BYTES);
    let answer = client.watch(request).await.map_err(|status| EtcdFailure::of(&member.endpoint, status))?;
    Ok(WatchStream {
        cluster: cluster.clone(),
        member: member.clone(),
        connection: connection.clone(),
        token,
        requests,
        responses: answer.into_inner(),
    })
}

impl WatchStream {
    /// Returns the next response. If the server is silent, requests a progress notification, and fails if none arrives.
    pub async fn next(&mut self) -> StoreResult<WatchResponse> {
        let silence = self.cluster.limits.watch_silence;
        let mut asked = false;
        loop {
            match tokio::time::timeout(silence, self.responses.message()).await {
                Ok(Ok(Some(response))) => return Ok(response),
                Ok(Ok(None)) => return Err(self.fail(EtcdFailure::Lost("the server ended the watch".into()))),
                Ok(Err(status)) => return Err(self.fail(EtcdFailure::of(&self.member.endpoint, status))),
                Err(_) if asked => {
                    self.member.discard(&self.connection);
                    return Err(self.fail(EtcdFailure::silent(&self.member.endpoint, silence)));
                }
                Err(_) => {
                    asked = true;
                    let progress = RequestUnion::ProgressRequest(WatchProgressRequest {});
                    let _ = self.requests.try_send(WatchRequest { request_union: Some(progress) });
                }
            }
        }
    }

    fn fail(&self, failure: EtcdFailure) -> StoreError {
        self.cluster.leave(&self.member);
        failure.into_error()
    }

    /// Discards the token after the server closed the watch: the token may have expired.
    pub async fn refused(&self) {
        if let Some(token) = &self.token {
            self.cluster.forget_token(token).await;
        }
    }
}
