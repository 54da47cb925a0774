//! Traffic control: token buckets, and the redirection of ingress packets through IFB devices that have one.

use super::types::{QdiscState, TokenBucket};
use super::{KernelRejection, RtnetlinkClient, decode};
use crate::error::{DataplaneError, DataplaneResult};
use crate::failure::KernelObject;
use nlink::netlink::MessageBuilder;
use nlink::netlink::eth_proto::EthProto;
use nlink::netlink::filter::FilterConfig;
use nlink::netlink::link::IfbLink;
use nlink::netlink::tc::{IngressConfig, TbfConfig};
use nlink::netlink::tc_handle::FilterPriority;
use nlink::netlink::tc_options::QdiscOptions;
use nlink::{Bytes, Rate, TcHandle};

type ShapingResult = Result<(), KernelRejection>;

/// Qdisc handle that identifies our buckets; no other program uses it.
const OUR_QDISC_HANDLE: TcHandle = TcHandle::major_only(0xca11);

impl RtnetlinkClient {
    /// Returns our buckets, and the redirections of all interfaces that have an ingress qdisc.
    pub async fn qdiscs(&self) -> DataplaneResult<QdiscState> {
        let mut qdiscs = QdiscState::default();
        for message in self.connection.get_qdiscs().await.map_err(cannot_list)? {
            let device = message.ifindex();
            match message.options() {
                Some(QdiscOptions::Tbf(tbf)) if message.handle() == OUR_QDISC_HANDLE => {
                    let peak = (tbf.peakrate > 0).then_some((tbf.peakrate, tbf.mtu));
                    let bucket = TokenBucket { rate: tbf.rate, burst: tbf.burst, limit: tbf.limit, peak };
                    qdiscs.buckets.insert(device, bucket);
                }
                _ if message.is_ingress() => {
                    let filters = self.connection.get_filters_by_parent_index(device, TcHandle::INGRESS);
                    let target = filters.await.map_err(cannot_list)?.iter().find_map(decode::redirection);
                    qdiscs.redirected.insert(device, target);
                }
                _ => {}
            }
        }
        Ok(qdiscs)
    }

    /// Sets the bucket that limits the egress of the interface.
    pub async fn set_bucket(&self, device: u32, interface: &str, bucket: &TokenBucket) -> ShapingResult {
        self.refuses_shaping(interface)?;
        let tbf = TbfConfig::new()
            .rate(Rate::bytes_per_sec(bucket.rate))
            .burst(Bytes::new(bucket.burst.into()))
            .limit(Bytes::new(bucket.limit.into()));
        let tbf = match bucket.peak {
            Some((rate, burst)) => tbf.peakrate(Rate::bytes_per_sec(rate)).mtu(burst),
            None => tbf,
        };
        let replaced =
            self.connection.replace_qdisc_by_index_full(device, TcHandle::ROOT, Some(OUR_QDISC_HANDLE), tbf);
        Ok(replaced.await?)
    }

    pub async fn delete_bucket(&self, device: u32) -> ShapingResult {
        Ok(self.connection.del_qdisc_by_index_full(device, TcHandle::ROOT, Some(OUR_QDISC_HANDLE)).await?)
    }

    pub async fn create_ifb(&self, name: &str, mtu: u32) -> ShapingResult {
        self.faults.check(|| KernelObject::interface(name))?;
        Ok(self.connection.add_link(IfbLink::new(name).mtu(mtu)).await?)
    }

    /// Redirects the ingress of the interface through the egress of another one.
    pub async fn redirect(&self, device: u32, interface: &str, to: u32) -> ShapingResult {
        const FIRST: u16 = 1;
        self.refuses_shaping(interface)?;
        let ingress = IngressConfig::new();
        self.connection.add_qdisc_by_index_full(device, TcHandle::INGRESS, None, ingress).await?;
        let filter = RedirectFilter { to };
        let added = self.connection.add_filter_by_index_full(
            device,
            TcHandle::INGRESS,
            None,
            EthProto::ALL,
            FilterPriority::new(FIRST),
            filter,
        );
        Ok(added.await?)
    }

    pub async fn delete_redirection(&self, device: u32) -> ShapingResult {
        Ok(self.connection.del_qdisc_by_index_full(device, TcHandle::INGRESS, None).await?)
    }

    fn refuses_shaping(&self, interface: &str) -> ShapingResult {
        Ok(self.faults.check(|| KernelObject::TrafficControl { interface: interface.to_owned() })?)
    }
}

fn cannot_list(error: nlink::Error) -> DataplaneError {
    DataplaneError::kernel("list of queueing disciplines", &error)
}

/// A filter that redirects all packets to a device. It is of kind `u32`, which is as old as the kernel's traffic
/// control; not every kernel has `matchall`.
struct RedirectFilter {
    to: u32,
}

impl FilterConfig for RedirectFilter {
    fn kind(&self) -> &'static str {
        "u32"
    }

    fn classid(&self) -> Option<u32> {
        None
    }

    fn write_options(&self, builder: &mut MessageBuilder) -> nlink::Result<()> {
        builder.append_attr(decode::u32_filter::SELECTOR, &selector());
        let actions = builder.nest_start(decode::u32_filter::ACTIONS);
        let first = builder.nest_start(1);
        builder.append_attr_str(decode::action::KIND, "mirred");
        let options = builder.nest_start(decode::action::OPTIONS);
        builder.append_attr(decode::action::MIRRED_PARAMETERS, &redirection(self.to));
        builder.nest_end(options);
        builder.nest_end(first);
        builder.nest_end(actions);
        Ok(())
    }
}

/// Encodes `tc_u32_sel` with one key, whose mask is empty.
fn selector() -> [u8; 32] {
    const TERMINAL: u8 = 1;
    let mut selector = [0; 32];
    // Byte 0 holds the flags, byte 1 the offset shift, byte 2 the number of keys.
    (selector[0], selector[2]) = (TERMINAL, 1);
    selector
}

/// Encodes `tc_mirred`: index, capabilities, action, two counts, the mirred action and the device.
fn redirection(to: u32) -> [u8; 28] {
    const STOLEN: i32 = 4;
    const EGRESS_REDIRECT: i32 = 1;
    let mut parameters = [0; 28];
    parameters[8..12].copy_from_slice(&STOLEN.to_ne_bytes());
    parameters[20..24].copy_from_slice(&EGRESS_REDIRECT.to_ne_bytes());
    parameters[24..].copy_from_slice(&to.to_ne_bytes());
    parameters
}
