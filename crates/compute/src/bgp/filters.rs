//! Converts BGPFilters to the form that the speaker applies.

use super::settings::community;
use tortie_model::kinds::{
    BGPFilter, BGPFilterAction, BGPFilterMatchOperator, BGPFilterOperation, BGPFilterPeerType, BGPFilterRule,
    BGPFilterSource,
};
use tortie_plan::bgp::{BgpFilter, BgpFilterRule, FilterOperation, FilterPrefix, FilterPrefixOperator};

pub(super) fn read(filter: &BGPFilter) -> Result<BgpFilter, String> {
    let spec = &filter.spec;
    let rules =
        |rules: &[BGPFilterRule]| rules.iter().map(rule).collect::<Result<Vec<BgpFilterRule>, String>>();
    Ok(BgpFilter {
        import_v4: rules(&spec.import_v4)?,
        export_v4: rules(&spec.export_v4)?,
        import_v6: rules(&spec.import_v6)?,
        export_v6: rules(&spec.export_v6)?,
    })
}

fn rule(rule: &BGPFilterRule) -> Result<BgpFilterRule, String> {
    let number = |value: i64| u32::try_from(value).map_err(|_| format!("{value} is not a priority"));
    let known = |text: &str| community(text).ok_or_else(|| format!("{text:?} is not a community"));
    let value = rule.communities.as_ref().and_then(|communities| communities.values.first());
    Ok(BgpFilterRule {
        prefix: prefix(rule)?,
        learnt: rule.source == BGPFilterSource::RemotePeers,
        interface: Some(rule.interface.clone()).filter(|interface| !interface.is_empty()),
        internal: match rule.peer_type {
            BGPFilterPeerType::Internal => Some(true),
            BGPFilterPeerType::External => Some(false),
            BGPFilterPeerType::Unknown(_) => None,
        },
        community: value.map(|value| known(value)).transpose()?,
        as_path_prefix: rule.as_path_prefix.iter().map(|number| number.0).collect(),
        priority: rule.priority.map(number).transpose()?,
        accept: rule.action == BGPFilterAction::Accept,
        operations: rule.operations.iter().map(operation).collect::<Result<_, _>>()?,
    })
}

fn prefix(rule: &BGPFilterRule) -> Result<Option<FilterPrefix>, String> {
    if rule.cidr.is_empty() {
        return Ok(None);
    }
    let net: ipnet::IpNet = rule.cidr.parse().map_err(|_| format!("{:?} is not a CIDR", rule.cidr))?;
    let operator = match rule.match_operator {
        BGPFilterMatchOperator::Equal => FilterPrefixOperator::Equal,
        BGPFilterMatchOperator::NotEqual => FilterPrefixOperator::NotEqual,
        BGPFilterMatchOperator::In => FilterPrefixOperator::In,
        BGPFilterMatchOperator::NotIn => FilterPrefixOperator::NotIn,
        BGPFilterMatchOperator::Unknown(_) => return Err("a cidr needs a matchOperator".to_owned()),
    };
    let bits = |given: Option<i32>| given.and_then(|bits| u8::try_from(bits).ok());
    let length = rule.prefix_length.as_ref().map(|length| {
        let first = bits(length.min).unwrap_or(0).max(net.prefix_len());
        let last = bits(length.max).unwrap_or(u8::MAX).min(net.max_prefix_len());
        (first, last)
    });
    Ok(Some(FilterPrefix { net, operator, length }))
}

fn operation(operation: &BGPFilterOperation) -> Result<FilterOperation, String> {
    if let Some(add) = &operation.add_community {
        let value = community(&add.value).ok_or_else(|| format!("{:?} is not a community", add.value))?;
        Ok(FilterOperation::AddCommunity(value))
    } else if let Some(prepend) = &operation.prepend_as_path {
        Ok(FilterOperation::PrependPath(prepend.prefix.iter().map(|number| number.0).collect()))
    } else if let Some(set) = &operation.set_priority {
        let value = u32::try_from(set.value).map_err(|_| format!("{} is not a priority", set.value))?;
        Ok(FilterOperation::SetPriority(value))
    } else {
        Err("an operation is empty".to_owned())
    }
}
