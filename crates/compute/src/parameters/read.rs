//! Parses the texts of parameters. Words are case-insensitive.

use ipnet::IpNet;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::num::TryFromIntError;
use std::time::Duration;
use thiserror::Error;
use tortie_model::kinds::FelixParameter;
use tortie_model::scalar::{Dscp, GoDuration, Port, Protocol, ScalarError};
use tortie_plan::{AllowAction, DenyAction, EndpointToHostAction, FailsafePort, PortInterval};

/// Reason why the text of a parameter cannot be used; the text precedes it in messages.
#[derive(Debug, Error)]
pub(super) enum ParameterError {
    #[error("is none of {}", .0.join(", "))]
    NotListed(Vec<&'static str>),
    #[error("is not a whole number")]
    NotWhole,
    #[error("is too small or too large")]
    OutOfRange,
    #[error("cannot be read: {0}")]
    Port(#[from] ScalarError),
    #[error("is not a port or a range like 32768:60999")]
    PortName,
    #[error("begins with port 0")]
    PortZero,
    #[error("is not of the form {0}")]
    Form(&'static str),
    #[error("is not a range of tables")]
    NotTables,
    #[error("begins with a table reserved by the kernel")]
    ReservedTable,
    #[error("is not a number of 32 bits such as 0xffff0000")]
    NotMask,
    #[error("has a unit that {0}")]
    Unit(#[source] Box<ParameterError>),
    #[error("is not a span of time such as 30 (seconds), 30s or 2m")]
    NotDuration,
    #[error("contains no name")]
    NoName,
    #[error("is not an IPv4 address")]
    NotIpv4,
    #[error("is not an address")]
    NotAddress,
    #[error("has a network that cannot be read")]
    NotNetwork,
    #[error("has no port between 0 and 65535")]
    NoPort,
    #[error("has an unknown protocol")]
    UnknownProtocol,
    #[error("is not a DSCP: 0 to 63 or a name such as AF21")]
    NotDscp,
    #[error("has no entry that can be read ({})", .0.join(", "))]
    NoEntry(Vec<String>),
}

/// A type of parameter values.
pub(super) trait ParseParameter: Sized {
    /// Returns the value of the text `none`, if the type has one.
    fn none() -> Option<Self> {
        None
    }

    /// Parses a text. The error describes the problem; a list reports the entries that it leaves out to `unread`.
    fn read(text: &str, of: &FelixParameter, unread: &mut dyn FnMut(String)) -> Result<Self, ParameterError>;

    fn built_in(of: &FelixParameter) -> Self;
}

/// Parses a text. Returns the default if there is no text or it cannot be parsed.
pub(super) fn read<T: ParseParameter>(
    of: &FelixParameter,
    text: Option<&str>,
    unread: &mut impl FnMut(&FelixParameter, String),
) -> T {
    let Some(text) = text.map(str::trim).filter(|text| !text.is_empty()) else { return T::built_in(of) };
    if text.eq_ignore_ascii_case("none")
        && let Some(none) = T::none()
    {
        return none;
    }
    T::read(text, of, &mut |why| unread(of, why)).unwrap_or_else(|why| {
        let default = if of.default.is_empty() { "nothing" } else { of.default };
        unread(of, format!("{text:?} {why}; the default holds: {default}"));
        T::built_in(of)
    })
}

/// Parses the default, which is a text of the table; a test verifies that every default can be parsed.
fn default_of<T: ParseParameter>(of: &FelixParameter, otherwise: T) -> T {
    match T::none() {
        Some(none) if of.default.is_empty() => none,
        _ => T::read(of.default, of, &mut |_| {}).unwrap_or(otherwise),
    }
}

/// A parameter for which it matters whether it is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OptionalParameter<T> {
    /// The default if it is not set.
    pub value: T,
    pub is_set: bool,
}

impl<T> OptionalParameter<T> {
    /// Returns the value if it is set.
    pub fn get(&self) -> Option<&T> {
        self.is_set.then_some(&self.value)
    }
}

impl<T: ParseParameter> ParseParameter for OptionalParameter<T> {
    fn none() -> Option<Self> {
        T::none().map(|value| OptionalParameter { value, is_set: true })
    }

    fn read(text: &str, of: &FelixParameter, unread: &mut dyn FnMut(String)) -> Result<Self, ParameterError> {
        T::read(text, of, unread).map(|value| OptionalParameter { value, is_set: true })
    }

    fn built_in(of: &FelixParameter) -> Self {
        OptionalParameter { value: T::built_in(of), is_set: false }
    }
}

/// Implements [`ParseParameter`] for types that are parsed from the text alone.
macro_rules! plain {
    ($($type:ty, $none:expr, $read:expr;)*) => {$(
        impl ParseParameter for $type {
            fn none() -> Option<Self> {
                $none
            }

            fn read(text: &str, _: &FelixParameter, _: &mut dyn FnMut(String)) -> Result<Self, ParameterError> {
                let read: fn(&str) -> Result<$type, ParameterError> = $read;
                read(text)
            }

            fn built_in(of: &FelixParameter) -> Self {
                default_of(of, Self::default())
            }
        }
    )*};
}

plain! {
    bool, Some(false), |text| parse_word(text, &[
        ("true", true), ("1", true), ("yes", true), ("y", true), ("t", true), ("enabled", true),
        ("false", false), ("0", false), ("no", false), ("n", false), ("f", false), ("disabled", false),
    ]);
    u8, Some(0), parse_number;
    u16, Some(0), parse_number;
    u32, Some(0), parse_number;
    String, Some(String::new()), |text| Ok(text.to_owned());
    EndpointToHostAction, None, |text| parse_word(text, &[
        ("Drop", EndpointToHostAction::Drop), ("Return", EndpointToHostAction::Return), ("Accept", EndpointToHostAction::Accept),
    ]);
    AllowAction, None, |text| parse_word(text, &[("Accept", AllowAction::Accept), ("Return", AllowAction::Return)]);
    DenyAction, None, |text| parse_word(text, &[("Drop", DenyAction::Drop), ("Reject", DenyAction::Reject)]);
    Option<DenyAction>, None, |text| parse_word(text, &[
        ("Drop", Some(DenyAction::Drop)), ("Reject", Some(DenyAction::Reject)), ("Disabled", None),
    ]);
    ClientAuth, Some(ClientAuth::Required), |text| parse_word(text, &[
        ("RequireAndVerifyClientCert", ClientAuth::Required), ("RequireAnyClientCert", ClientAuth::Required),
        ("VerifyClientCertIfGiven", ClientAuth::IfGiven), ("NoClientCert", ClientAuth::None),
    ]);
    HttpRulesWithoutProxy, None, |text| parse_word(text, &[
        ("Ignore", HttpRulesWithoutProxy::Ignore), ("Allow", HttpRulesWithoutProxy::Allow),
    ]);
    ClusterRoutes, None, |text| parse_word(text, &[
        ("Enabled", ClusterRoutes::Enabled), ("Disabled", ClusterRoutes::Disabled),
        ("EnabledIPIPOnly", ClusterRoutes::IpipOnly), ("EnabledNoEncapOnly", ClusterRoutes::NoEncapOnly),
    ]);
    L2Reachability, None, |text| parse_word(text, &[
        ("Disabled", L2Reachability::Disabled), ("PodsAndLoadBalancers", L2Reachability::PodsAndLoadBalancers),
    ]);
    FlowOffload, None, |text| parse_word(text, &[
        ("Disabled", FlowOffload::Disabled), ("All", FlowOffload::All), ("Enabled", FlowOffload::All),
    ]);
    FlowEvaluation, Some(FlowEvaluation::None), |text| parse_word(text, &[
        ("Continuous", FlowEvaluation::Continuous), ("None", FlowEvaluation::None),
    ]);
    RouteSource, None, |text| parse_word(text, &[
        ("CalicoIPAM", RouteSource::CalicoIpam), ("WorkloadIPs", RouteSource::WorkloadIps),
    ]);
    LogSeverity, Some(LogSeverity::Off), |text| parse_word(text, &[
        ("Trace", LogSeverity::Trace), ("Debug", LogSeverity::Debug), ("Info", LogSeverity::Info), ("Warning", LogSeverity::Warning),
        ("Error", LogSeverity::Error), ("Fatal", LogSeverity::Fatal),
    ]);
    Option<u16>, Some(None), |text| parse_number(text).map(Some);
    FirstRouteTable, Some(FirstRouteTable::default()), FirstRouteTable::read;
    MarkMask, None, MarkMask::read;
    DscpMark, None, |text| parse_dscp(text).map(DscpMark);
    SourceSpoofing, None, |text| parse_word(text, &[("Disabled", SourceSpoofing::Disabled), ("Any", SourceSpoofing::Any)]);
    Option<LogRate>, Some(None), |text| LogRate::read(text).map(Some);
    NatExclusions, None, |text| parse_word(text, &[
        ("IPPoolsOnly", NatExclusions::PoolsOnly), ("IPPoolsAndHostIPs", NatExclusions::PoolsAndHosts),
    ]);
    Option<PortInterval>, Some(None), |text| parse_ports(text).map(Some);
    Option<Ipv4Addr>, Some(None), |text| text.parse().map(Some).map_err(|_| ParameterError::NotIpv4);
    Option<IpAddr>, Some(None), |text| text.parse().map(Some).map_err(|_| ParameterError::NotAddress);
}

fn parse_word<T: Copy>(text: &str, words: &[(&'static str, T)]) -> Result<T, ParameterError> {
    match words.iter().find(|(word, _)| word.eq_ignore_ascii_case(text)) {
        Some((_, value)) => Ok(*value),
        None => Err(ParameterError::NotListed(words.iter().map(|(word, _)| *word).collect())),
    }
}

fn parse_number<T: TryFrom<i64, Error = TryFromIntError>>(text: &str) -> Result<T, ParameterError> {
    let number: i64 = text.parse().map_err(|_| ParameterError::NotWhole)?;
    T::try_from(number).map_err(|_| ParameterError::OutOfRange)
}

fn parse_dscp(text: &str) -> Result<u8, ParameterError> {
    text.parse::<Dscp>()?.value().ok_or(ParameterError::NotDscp)
}

/// Parses a range of source ports; 0 is not allowed.
fn parse_ports(text: &str) -> Result<PortInterval, ParameterError> {
    let (first, last) = text.parse::<Port>()?.bounds().ok_or(ParameterError::PortName)?;
    if first == 0 { Err(ParameterError::PortZero) } else { Ok(PortInterval { first, last }) }
}

/// `natOutgoingExclusions`: destinations for which connections are not translated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NatExclusions {
    #[default]
    PoolsOnly,
    PoolsAndHosts,
}

/// `programClusterRoutes`: the routes that the node writes itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClusterRoutes {
    Enabled,
    Disabled,
    #[default]
    IpipOnly,
    NoEncapOnly,
}

/// `httpRulesWithoutProxy`: the effect of rules with HTTP conditions on workloads without a proxy that checks them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HttpRulesWithoutProxy {
    /// Such a rule matches nothing.
    #[default]
    Ignore,
    /// Such a rule matches connections regardless of methods and paths, as with Calico.
    Allow,
}

/// `flowLogsPolicyEvaluationMode`: whether flow records have pending traces, which staged policies would make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlowEvaluation {
    #[default]
    Continuous,
    None,
}

/// `localSubnetL2Reachability`: the addresses for which a node answers ARP and ND requests on its links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum L2Reachability {
    #[default]
    Disabled,
    PodsAndLoadBalancers,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlowOffload {
    #[default]
    Disabled,
    All,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RouteSource {
    #[default]
    CalicoIpam,
    WorkloadIps,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceSpoofing {
    #[default]
    Disabled,
    /// An endpoint may request it.
    Any,
}

/// `istioDSCPMark`: the number of a differentiated services code point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DscpMark(pub u8);

/// `prometheusMetricsClientAuth`: whether clients present a certificate, if a CA to verify it is configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientAuth {
    #[default]
    Required,
    IfGiven,
    None,
}

/// The minimum severity of messages that are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogSeverity {
    Trace,
    Debug,
    #[default]
    Info,
    Warning,
    Error,
    /// Same as `Error`: no message is more severe.
    Fatal,
    Off,
}

/// `routeTableRanges`: the first number of the first range, because the node uses only one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstRouteTable(pub u32);

impl Default for FirstRouteTable {
    fn default() -> FirstRouteTable {
        FirstRouteTable(1)
    }
}

impl FirstRouteTable {
    /// Parses `1-250,1000-1999`.
    fn read(text: &str) -> Result<FirstRouteTable, ParameterError> {
        // Tables of the kernel: default, main and local.
        const RESERVED_TABLES: std::ops::RangeInclusive<u32> = 253..=255;
        let range = text.split(',').next().unwrap_or_default().trim();
        let (first, last) = range.split_once('-').ok_or(ParameterError::Form("1-250"))?;
        let first: u32 = parse_number(first.trim())?;
        let last: u32 = parse_number(last.trim())?;
        if first == 0 || first > last {
            return Err(ParameterError::NotTables);
        }
        if RESERVED_TABLES.contains(&first) {
            return Err(ParameterError::ReservedTable);
        }
        Ok(FirstRouteTable(first))
    }
}

/// `iptablesMarkMask`, `nftablesMarkMask`: a decimal or hexadecimal number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MarkMask(pub u32);

impl MarkMask {
    fn read(text: &str) -> Result<MarkMask, ParameterError> {
        let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
        let mask = hexadecimal.map_or_else(|| text.parse(), |digits| u32::from_str_radix(digits, 16));
        mask.map(MarkMask).map_err(|_| ParameterError::NotMask)
    }
}

/// A rate such as `10/second`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRate {
    pub packets: u32,
    pub seconds: u32,
}

impl LogRate {
    fn read(text: &str) -> Result<LogRate, ParameterError> {
        let (packets, unit) = text.split_once('/').ok_or(ParameterError::Form("10/second"))?;
        let units = [("second", 1), ("minute", 60), ("hour", 60 * 60), ("day", 24 * 60 * 60)];
        let seconds = parse_word(unit.trim(), &units);
        let seconds = seconds.map_err(|error| ParameterError::Unit(Box::new(error)))?;
        Ok(LogRate { packets: parse_number(packets.trim())?, seconds })
    }
}

/// Numbers without a unit are seconds, or milliseconds if the parameter's name ends in `Millis`.
impl ParseParameter for Duration {
    fn none() -> Option<Self> {
        Some(Duration::ZERO)
    }

    fn read(text: &str, of: &FelixParameter, _: &mut dyn FnMut(String)) -> Result<Self, ParameterError> {
        let unit = if of.name.ends_with("Millis") { 1000.0 } else { 1.0 };
        let span = match text.parse::<f64>() {
            Ok(number) => Duration::try_from_secs_f64(number / unit).ok(),
            Err(_) => text.parse::<GoDuration>().ok().and_then(GoDuration::to_std),
        };
        span.ok_or(ParameterError::NotDuration)
    }

    fn built_in(of: &FelixParameter) -> Self {
        default_of(of, Duration::ZERO)
    }
}

/// `healthTimeoutOverrides`: how long components of the daemon may be silent, as comma-separated `NAME=DURATION`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthTimeouts(pub BTreeMap<String, Duration>);

impl ParseParameter for HealthTimeouts {
    fn none() -> Option<Self> {
        Some(HealthTimeouts::default())
    }

    fn read(text: &str, of: &FelixParameter, unread: &mut dyn FnMut(String)) -> Result<Self, ParameterError> {
        let mut timeouts = BTreeMap::new();
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let read = entry.split_once('=').ok_or(ParameterError::Form("NAME=DURATION"));
            match read.and_then(|(name, span)| Ok((name, Duration::read(span.trim(), of, unread)?))) {
                Ok((name, span)) => drop(timeouts.insert(name.trim().to_owned(), span)),
                Err(why) => unread(format!("{entry:?} {why}; this entry is left out")),
            }
        }
        Ok(HealthTimeouts(timeouts))
    }

    fn built_in(_: &FelixParameter) -> Self {
        HealthTimeouts::default()
    }
}

/// Comma-separated names.
impl ParseParameter for Vec<String> {
    fn read(text: &str, _: &FelixParameter, _: &mut dyn FnMut(String)) -> Result<Self, ParameterError> {
        let names: Vec<String> =
            text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
        if names.is_empty() { Err(ParameterError::NoName) } else { Ok(names) }
    }

    fn built_in(of: &FelixParameter) -> Self {
        default_of(of, Vec::new())
    }
}

/// Comma-separated networks and addresses. An entry that cannot be parsed is left out and reported.
impl ParseParameter for Vec<IpNet> {
    fn none() -> Option<Self> {
        Some(Vec::new())
    }

    fn read(text: &str, _: &FelixParameter, unread: &mut dyn FnMut(String)) -> Result<Self, ParameterError> {
        let mut nets = Vec::new();
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            match parse_network(entry) {
                Ok(net) => nets.push(net),
                Err(why) => unread(format!("{entry:?} {why}; this entry is left out")),
            }
        }
        Ok(nets)
    }

    fn built_in(of: &FelixParameter) -> Self {
        default_of(of, Vec::new())
    }
}

fn parse_network(text: &str) -> Result<IpNet, ParameterError> {
    let net = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    net.map(|net| net.trunc()).map_err(|_| ParameterError::NotNetwork)
}

/// Protocol, network and port: `tcp:22,udp:[fd00::/8]:53,tcp:10.0.0.0/8:80,443`; a port without protocol is a TCP
/// port.
impl ParseParameter for Vec<FailsafePort> {
    fn none() -> Option<Self> {
        Some(Vec::new())
    }

    /// Parses the entries. An entry that cannot be parsed is left out and reported. If none is left, the host could
    /// become unreachable, so the default applies.
    fn read(text: &str, _: &FelixParameter, unread: &mut dyn FnMut(String)) -> Result<Self, ParameterError> {
        let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        let mut ports = Vec::new();
        let mut bad = Vec::new();
        for entry in entries {
            match parse_failsafe(entry) {
                Ok(port) => ports.push(port),
                Err(why) => bad.push(format!("{entry:?} {why}")),
            }
        }
        if ports.is_empty() {
            return Err(ParameterError::NoEntry(bad));
        }
        bad.into_iter().for_each(|why| unread(format!("{why}; this entry is left out")));
        Ok(ports)
    }

    fn built_in(of: &FelixParameter) -> Self {
        default_of(of, Vec::new())
    }
}

fn parse_failsafe(text: &str) -> Result<FailsafePort, ParameterError> {
    let (protocol, rest) = text.split_once(':').unwrap_or(("tcp", text));
    let (net, port) = match rest.rsplit_once(':') {
        Some((net, port)) => (net.trim_start_matches('[').trim_end_matches(']'), port),
        None => ("", rest),
    };
    let port = port.parse().map_err(|_| ParameterError::NoPort)?;
    let protocol = Protocol::from_any_case(protocol).number().ok_or(ParameterError::UnknownProtocol)?;
    let net = match net {
        "" => None,
        text => Some(parse_network(text)?),
    };
    Ok(FailsafePort { protocol, port, net })
}
