//! A full disk: writes are rejected with the NOSPACE alarm, everything else continues, and nothing is lost.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use bytes::Bytes;
use support::disk::TmpfsDisk;
use support::{EmbeddedDatastore, connect};
use tonic::transport::Channel;
use tonic::{Code, Status};
use tortie_etcd_proto::etcdserverpb::alarm_request::AlarmAction;
use tortie_etcd_proto::etcdserverpb::kv_client::KvClient;
use tortie_etcd_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use tortie_etcd_proto::etcdserverpb::*;

fn key(number: usize) -> Bytes {
    format!("/key/{number:05}").into()
}

fn put(number: usize, size: usize) -> PutRequest {
    PutRequest { key: key(number), value: vec![number as u8; size].into(), ..Default::default() }
}

fn on(disk: &TmpfsDisk) -> EmbeddedDatastore {
    let dir = disk.path().join("data");
    EmbeddedDatastore::with(|options| options.data_dir = dir)
}

struct DiskTestClient {
    kv: KvClient<Channel>,
    maintenance: MaintenanceClient<Channel>,
}

impl DiskTestClient {
    async fn new(embedded: &EmbeddedDatastore) -> DiskTestClient {
        let channel = connect(&embedded.url).await;
        DiskTestClient { kv: KvClient::new(channel.clone()), maintenance: MaintenanceClient::new(channel) }
    }

    async fn alarms(&mut self, action: AlarmAction) -> usize {
        let request = AlarmRequest { action: action.into(), member_id: 0, alarm: AlarmType::Nospace.into() };
        self.maintenance.alarm(request).await.unwrap().into_inner().alarms.len()
    }

    async fn count(&mut self) -> i64 {
        let all =
            RangeRequest { key: "/".into(), range_end: "0".into(), count_only: true, ..Default::default() };
        self.kv.range(all).await.unwrap().into_inner().count
    }

    async fn delete(&mut self, number: usize) -> Result<i64, Status> {
        let request = DeleteRangeRequest { key: key(number), ..Default::default() };
        Ok(self.kv.delete_range(request).await?.into_inner().deleted)
    }

    async fn snapshot(&mut self) -> Result<usize, Status> {
        let mut pieces = self.maintenance.snapshot(SnapshotRequest {}).await?.into_inner();
        let mut size = 0;
        while let Some(piece) = pieces.message().await? {
            size += piece.blob.len();
        }
        Ok(size)
    }

    async fn assert_full(&mut self) {
        let refused = self.kv.put(put(99_999, 10)).await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert_eq!(refused.message(), "etcdserver: mvcc: database space exceeded");
        assert_eq!(self.alarms(AlarmAction::Get).await, 1);
    }
}

fn temporary_files(disk: &TmpfsDisk) -> Vec<String> {
    let names = std::fs::read_dir(disk.path().join("data")).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".tmp")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_writes_and_nothing_else() {
    let disk = TmpfsDisk::new(48 << 20);
    let embedded = on(&disk);
    let mut client = DiskTestClient::new(&embedded).await;
    for number in 0..100 {
        client.kv.put(put(number, 50_000)).await.unwrap();
    }
    disk.fill();
    client.assert_full().await;
    assert_eq!(client.count().await, 100);
    let value = client.kv.range(RangeRequest { key: key(7), ..Default::default() }).await.unwrap();
    assert_eq!(value.into_inner().kvs[0].value.len(), 50_000);

    // Both need space for a copy. They are rejected with the reason and leave nothing behind; the store continues.
    let refused = client.maintenance.defragment(DefragmentRequest {}).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("the store was not defragmented"), "{refused}");
    assert!(refused.message().contains("bytes are needed in"), "{refused}");
    let refused = client.snapshot().await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("no snapshot was made"), "{refused}");
    assert!(temporary_files(&disk).is_empty());

    for number in 0..50 {
        assert_eq!(client.delete(number).await.unwrap(), 1);
    }
    let revision = 1 + 100 + 50;
    client.kv.compact(CompactionRequest { revision, physical: true }).await.unwrap();
    assert_eq!(client.count().await, 50);

    // If it is disarmed without free space, the alarm returns with the next write.
    assert_eq!(client.alarms(AlarmAction::Deactivate).await, 1);
    client.assert_full().await;

    disk.free();
    client.assert_full().await;
    assert_eq!(client.alarms(AlarmAction::Deactivate).await, 1);
    client.kv.put(put(200, 50_000)).await.unwrap();
    assert_eq!(client.alarms(AlarmAction::Get).await, 0);
    client.maintenance.defragment(DefragmentRequest {}).await.unwrap();
    assert!(client.snapshot().await.unwrap() > 50 * 50_000);

    drop(client);
    embedded.stop().await;
    let embedded = on(&disk);
    assert_eq!(DiskTestClient::new(&embedded).await.count().await, 51);
    embedded.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filling_disk_loses_no_write() {
    let disk = TmpfsDisk::new(40 << 20);
    let embedded = on(&disk);
    let mut client = DiskTestClient::new(&embedded).await;
    let mut stored = 0;
    let refused = loop {
        match client.kv.put(put(stored, 100_000)).await {
            Ok(_) => stored += 1,
            Err(status) => break status,
        }
        assert!(stored < 1000, "the disk does not fill up");
    };
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert_eq!(client.count().await, stored as i64);
    let all = DeleteRangeRequest { key: "/".into(), range_end: "0".into(), ..Default::default() };
    let deleted = client.kv.delete_range(all).await.unwrap().into_inner();
    assert_eq!(deleted.deleted, stored as i64);
    let revision = deleted.header.unwrap().revision;
    client.kv.compact(CompactionRequest { revision, physical: true }).await.unwrap();
    client.maintenance.defragment(DefragmentRequest {}).await.unwrap();
    client.alarms(AlarmAction::Deactivate).await;
    client.kv.put(put(0, 100_000)).await.unwrap();
    embedded.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn even_without_its_reserve_the_store_goes_on() {
    let disk = TmpfsDisk::new(48 << 20);
    let embedded = on(&disk);
    let mut client = DiskTestClient::new(&embedded).await;
    for number in 0..600 {
        client.kv.put(put(number, 20_000)).await.unwrap();
    }
    // Another process takes every piece of the reserve as soon as it is released.
    let mut deleted = 0;
    let refused = loop {
        disk.fill();
        match client.delete(deleted).await {
            Ok(_) => deleted += 1,
            Err(status) => break Some(status),
        }
        if deleted == 600 {
            break None;
        }
    };
    if let Some(refused) = refused {
        assert_eq!(refused.code(), Code::ResourceExhausted, "after {deleted} deletes: {refused}");
    }
    assert_eq!(client.count().await, 600 - deleted as i64);
    client.assert_full().await;
    disk.free();
    client.alarms(AlarmAction::Deactivate).await;
    client.kv.put(put(1000, 20_000)).await.unwrap();
    assert_eq!(client.count().await, 601 - deleted as i64);
    drop(client);
    embedded.stop().await;
    let embedded = on(&disk);
    assert_eq!(DiskTestClient::new(&embedded).await.count().await, 601 - deleted as i64);
    embedded.stop().await;
}
