//! Metrics of the server.

use crate::codec::RejectReason;
use crate::codec::dhcp4::{Dhcp4ReplyType, Dhcp4RequestType};
use crate::codec::dhcp6::{Dhcp6ReplyType, Dhcp6RequestType};
use crate::respond::{ReplyType, RequestType};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tortie_http::{declare_metrics, render_registry};

type TypeLabels = [(&'static str, &'static str); 2];
type ReasonLabels = [(&'static str, &'static str); 1];

declare_metrics! {
    #[derive(Debug, Default)]
    pub struct DhcpMetrics {
        registry: Registry;
        requests: Family<TypeLabels, Counter> = "tortie_dhcp_requests", "Processed requests by protocol and type";
        replies: Family<TypeLabels, Counter> = "tortie_dhcp_replies", "Replies by protocol and type";
        rejected: Family<ReasonLabels, Counter> = "tortie_dhcp_rejected_frames", "Frames without a reply by reason";
        pub throttled: Counter = "tortie_dhcp_throttled_frames",
            "Frames dropped because their interface exceeded its rate";
        pub truncated: Counter = "tortie_dhcp_truncated_replies",
            "DHCPv4 replies without some options because the client accepts no longer message";
        pub send_failures: Counter = "tortie_dhcp_send_failures", "Replies that the kernel did not accept";
        pub open_failures: Counter = "tortie_dhcp_interface_failures", "Failed attempts to open an interface";
        pub advertisements: Counter = "tortie_dhcp_unsolicited_advertisements",
            "Router advertisements that no machine asked for";
        pub interfaces: Gauge = "tortie_dhcp_interfaces", "Served interfaces";
        pub endpoints: Gauge = "tortie_dhcp_endpoints", "Workload endpoints of this host";
        pub subnets: Gauge = "tortie_dhcp_subnets", "Known subnets with DHCP";
        pub faulty_endpoints: Gauge = "tortie_dhcp_faulty_endpoints",
            "Endpoints that lack a lease for themselves or for one of their addresses; the log names them";
        pub ignored_entries: Gauge = "tortie_dhcp_ignored_entries", "Entries ignored because there are too many";
        pub unreadable_entries: Gauge = "tortie_dhcp_unreadable_entries", "Entries that could not be read";
        pub in_sync: Gauge = "tortie_dhcp_in_sync", "1 if the first snapshot of the datastore is complete";
    }
}

impl DhcpMetrics {
    pub fn new() -> DhcpMetrics {
        let mut metrics = DhcpMetrics::default();
        for reason in RejectReason::ALL {
            let _ = metrics.rejected.get_or_create(&[("reason", reason.label())]);
        }
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        metrics.registry = registry;
        metrics
    }

    pub fn count_request(&self, request: RequestType, reply: Option<ReplyType>) {
        self.requests.get_or_create(&request_labels(request)).inc();
        if let Some(reply) = reply {
            self.replies.get_or_create(&reply_labels(reply)).inc();
        }
    }

    pub fn count_rejected(&self, reason: RejectReason) {
        self.rejected.get_or_create(&[("reason", reason.label())]).inc();
    }

    /// Renders the metrics page.
    pub fn render(&self) -> String {
        render_registry(&self.registry) + &tortie_http::process::render_metrics()
    }
}

fn labels(protocol: &'static str, kind: &'static str) -> TypeLabels {
    [("protocol", protocol), ("type", kind)]
}

fn request_labels(request: RequestType) -> TypeLabels {
    match request {
        RequestType::Dhcp4(kind) => labels(
            "dhcpv4",
            match kind {
                Dhcp4RequestType::Discover => "discover",
                Dhcp4RequestType::Request => "request",
                Dhcp4RequestType::Decline => "decline",
                Dhcp4RequestType::Release => "release",
                Dhcp4RequestType::Inform => "inform",
            },
        ),
        RequestType::Dhcp6(kind) => labels(
            "dhcpv6",
            match kind {
                Dhcp6RequestType::Solicit => "solicit",
                Dhcp6RequestType::Request => "request",
                Dhcp6RequestType::Confirm => "confirm",
                Dhcp6RequestType::Renew => "renew",
                Dhcp6RequestType::Rebind => "rebind",
                Dhcp6RequestType::Release => "release",
                Dhcp6RequestType::Decline => "decline",
                Dhcp6RequestType::InformationRequest => "information-request",
            },
        ),
        RequestType::RouterSolicitation => labels("nd", "router-solicitation"),
    }
}

fn reply_labels(reply: ReplyType) -> TypeLabels {
    match reply {
        ReplyType::Dhcp4(Dhcp4ReplyType::Offer) => labels("dhcpv4", "offer"),
        ReplyType::Dhcp4(Dhcp4ReplyType::Ack) => labels("dhcpv4", "ack"),
        ReplyType::Dhcp4(Dhcp4ReplyType::Nak) => labels("dhcpv4", "nak"),
        ReplyType::Dhcp6(Dhcp6ReplyType::Advertise) => labels("dhcpv6", "advertise"),
        ReplyType::Dhcp6(Dhcp6ReplyType::Reply) => labels("dhcpv6", "reply"),
        ReplyType::RouterAdvertisement => labels("nd", "router-advertisement"),
    }
}
