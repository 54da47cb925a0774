//! The gRPC services, and the limits of what one request may use.

use super::listener::PeerAddress;
use super::stream::{FlowStream, STREAM_QUEUE_FLOWS, StreamItem};
use crate::collector::{FlowCollector, ListError, describe_pages, now_seconds};
use crate::proto::flow_collector_server::FlowCollector as FlowCollectorService;
use crate::proto::flows_server::Flows;
use crate::proto::statistics_server::Statistics;
use crate::proto::*;
use crate::resend::NodeConnection;
use crate::ring::{FlowQuery, PageRequest, QueryError, StatisticsQuery, TimeWindow, check_filter};
use futures::{Stream, StreamExt};
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Maximum number of queries that are computed concurrently, and how long further ones wait.
const MAX_CONCURRENT_QUERIES: usize = 4;
const QUERY_WAIT: Duration = Duration::from_secs(10);

type BoxStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[derive(Clone)]
pub struct FlowService {
    collector: Arc<FlowCollector>,
    queries: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    max_streams: usize,
    stop: watch::Receiver<bool>,
}

impl FlowService {
    pub fn new(
        collector: Arc<FlowCollector>,
        max_streams: usize,
        stop: watch::Receiver<bool>,
    ) -> FlowService {
        FlowService {
            collector,
            queries: Arc::new(Semaphore::new(MAX_CONCURRENT_QUERIES)),
            streams: Arc::new(Semaphore::new(max_streams)),
            max_streams,
            stop,
        }
    }

    /// Computes a query in a separate thread.
    async fn run_query<T: Send + 'static>(
        &self,
        compute: impl FnOnce(&FlowCollector) -> T + Send + 'static,
    ) -> Result<T, Status> {
        let acquired = tokio::time::timeout(QUERY_WAIT, self.queries.clone().acquire_owned()).await;
        let Ok(Ok(permit)) = acquired else {
            self.collector.metrics().refused_queries.inc();
            return Err(Status::resource_exhausted("too many queries at the same time; try again"));
        };
        let collector = self.collector.clone();
        let computing = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            compute(&collector)
        });
        computing.await.map_err(|_| Status::internal("the query failed"))
    }

    fn reject_result(&self, error: QueryError) -> Status {
        if error == QueryError::TooLarge {
            self.collector.metrics().oversized_lists.inc();
        }
        reject_query(error)
    }
}

fn reject_query(error: QueryError) -> Status {
    match error {
        QueryError::TooLarge => Status::resource_exhausted(error.to_string()),
        _ => Status::invalid_argument(error.to_string()),
    }
}

fn reject_list(error: ListError) -> Status {
    match error {
        ListError::Query(error) => reject_query(error),
        ListError::TooLarge { .. } => Status::resource_exhausted(error.to_string()),
    }
}

#[tonic::async_trait]
impl Flows for FlowService {
    type StreamStream = ReceiverStream<StreamItem>;

    async fn list(&self, request: Request<FlowListRequest>) -> Result<Response<FlowListResult>, Status> {
        let request = request.into_inner();
        let page = PageRequest::new(request.page, request.page_size).map_err(reject_query)?;
        let window = TimeWindow { gte: request.start_time_gte, lt: request.start_time_lt };
        let sort_by = request.sort_by.first().map(|option| option.sort_by);
        let query = FlowQuery::new(window, request.filter.unwrap_or_default(), sort_by, page);
        let query = query.map_err(reject_query)?;
        let result = self.run_query(move |collector| collector.list(&query)).await?;
        result.map(Response::new).map_err(reject_list)
    }

    async fn stream(
        &self,
        request: Request<FlowStreamRequest>,
    ) -> Result<Response<Self::StreamStream>, Status> {
        let request = request.into_inner();
        let filter = request.filter.unwrap_or_default();
        check_filter(&filter).map_err(|error| reject_query(error.into()))?;
        let Ok(permit) = self.streams.clone().try_acquire_owned() else {
            self.collector.metrics().refused_streams.inc();
            let limit = self.max_streams;
            return Err(Status::resource_exhausted(format!("there are already {limit} streams")));
        };
        let next = self.collector.read(|ring| ring.stream_start(request.start_time_gte, now_seconds()));
        let (sender, receiver) = mpsc::channel(STREAM_QUEUE_FLOWS);
        let (collector, stop) = (self.collector.clone(), self.stop.clone());
        tokio::spawn(FlowStream { collector, filter, next, sender, stop, _permit: permit }.run());
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn filter_hints(
        &self,
        request: Request<FilterHintsRequest>,
    ) -> Result<Response<FilterHintsResult>, Status> {
        let request = request.into_inner();
        let page = PageRequest::new(request.page, request.page_size).map_err(reject_query)?;
        let window = TimeWindow { gte: request.start_time_gte, lt: request.start_time_lt };
        let filter = request.filter.unwrap_or_default();
        let kind = request.r#type;
        let list = move |collector: &FlowCollector| {
            collector.read(|ring| ring.list_hints(kind, window, &filter, now_seconds()))
        };
        let values = self.run_query(list).await?.map_err(|error| self.reject_result(error))?;
        let total = values.len();
        let range = page.range(total);
        let hints = values.into_iter().skip(range.start).take(range.len());
        Ok(Response::new(FilterHintsResult {
            meta: Some(describe_pages(page.total_pages(total), total)),
            hints: hints.map(|value| FilterHint { value }).collect(),
        }))
    }
}

/// Counts a node as connected until it is dropped.
struct NodeGuard(Arc<FlowCollector>);

impl NodeGuard {
    fn new(collector: Arc<FlowCollector>) -> NodeGuard {
        collector.metrics().clients.inc();
        NodeGuard(collector)
    }

    fn receive(&self, from: NodeConnection, update: &FlowUpdate) -> FlowReceipt {
        self.0.receive(from, update.flow.as_ref());
        FlowReceipt {}
    }
}

impl Drop for NodeGuard {
    fn drop(&mut self) {
        self.0.metrics().clients.dec();
    }
}

#[tonic::async_trait]
impl FlowCollectorService for FlowService {
    type ConnectStream = BoxStream<FlowReceipt>;

    /// Records the updates of a node. A receipt is sent for each, and a node that does not read them is not read either.
    async fn connect(
        &self,
        request: Request<Streaming<FlowUpdate>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        let peer = request.extensions().get::<PeerAddress>().map(|peer| peer.0);
        let from = self.collector.open_connection(peer.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)));
        let guard = NodeGuard::new(self.collector.clone());
        let updates = request.into_inner();
        let receipts = updates.map(move |update| update.map(|update| guard.receive(from, &update)));
        let mut stop = self.stop.clone();
        let stopped = async move { drop(stop.wait_for(|stop| *stop).await) };
        Ok(Response::new(Box::pin(receipts.take_until(Box::pin(stopped)))))
    }
}

#[tonic::async_trait]
impl Statistics for FlowService {
    type ListStream = BoxStream<StatisticsResult>;

    async fn list(&self, request: Request<StatisticsRequest>) -> Result<Response<Self::ListStream>, Status> {
        let query = StatisticsQuery::new(request.into_inner()).map_err(reject_query)?;
        let collect = move |collector: &FlowCollector| {
            collector.read(|ring| ring.collect_statistics(&query, now_seconds()))
        };
        let results = self.run_query(collect).await?.map_err(|error| self.reject_result(error))?;
        Ok(Response::new(Box::pin(tokio_stream::iter(results).map(Ok))))
    }
}
