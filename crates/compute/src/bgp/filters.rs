//! Converts BGPFilters to the filters of the plan, which the BGP speaker applies.

use super::settings::parse_community;
use crate::conversion_error::{ConversionError, ConversionReason, parse_cidr};
use tortie_model::kinds::{
    BGPFilter, BGPFilterAction, BGPFilterMatchOperator, BGPFilterOperation, BGPFilterPeerType, BGPFilterRule,
    BGPFilterSource,
};
use tortie_plan::bgp::{
    BgpCommunity, BgpFilter, BgpFilterRule, FilterOperation, FilterPrefix, FilterPrefixOperator,
};

pub(super) fn convert_filter(filter: &BGPFilter) -> Result<BgpFilter, ConversionError> {
    let spec = &filter.spec;
    Ok(BgpFilter {
        import_v4: convert_rules(&spec.import_v4)?,
        export_v4: convert_rules(&spec.export_v4)?,
        import_v6: convert_rules(&spec.import_v6)?,
        export_v6: convert_rules(&spec.export_v6)?,
    })
}

fn convert_rules(rules: &[BGPFilterRule]) -> Result<Vec<BgpFilterRule>, ConversionError> {
    rules.iter().map(convert_rule).collect()
}

fn convert_rule(rule: &BGPFilterRule) -> Result<BgpFilterRule, ConversionError> {
    let value = rule.communities.as_ref().and_then(|communities| communities.values.first());
    Ok(BgpFilterRule {
        prefix: convert_prefix(rule)?,
        learnt: rule.source == BGPFilterSource::RemotePeers,
        interface: Some(rule.interface.clone()).filter(|interface| !interface.is_empty()),
        internal: match rule.peer_type {
            BGPFilterPeerType::Internal => Some(true),
            BGPFilterPeerType::External => Some(false),
            BGPFilterPeerType::Unknown(_) => None,
        },
        community: value.map(|value| parse_known_community("communities", value)).transpose()?,
        as_path_prefix: rule.as_path_prefix.iter().map(|number| number.0).collect(),
        priority: rule.priority.map(|number| parse_priority("priority", number)).transpose()?,
        accept: rule.action == BGPFilterAction::Accept,
        operations: rule.operations.iter().map(convert_operation).collect::<Result<_, _>>()?,
    })
}

fn parse_known_community(field: &'static str, text: &str) -> Result<BgpCommunity, ConversionError> {
    parse_community(text).ok_or_else(|| ConversionError::new(field, text, ConversionReason::NotCommunity))
}

fn parse_priority(field: &'static str, number: i64) -> Result<u32, ConversionError> {
    u32::try_from(number).map_err(|_| ConversionError::new(field, number, ConversionReason::NotPriority))
}

fn convert_prefix(rule: &BGPFilterRule) -> Result<Option<FilterPrefix>, ConversionError> {
    if rule.cidr.is_empty() {
        return Ok(None);
    }
    let net = parse_cidr("cidr", &rule.cidr)?;
    let operator = match rule.match_operator {
        BGPFilterMatchOperator::Equal => FilterPrefixOperator::Equal,
        BGPFilterMatchOperator::NotEqual => FilterPrefixOperator::NotEqual,
        BGPFilterMatchOperator::In => FilterPrefixOperator::In,
        BGPFilterMatchOperator::NotIn => FilterPrefixOperator::NotIn,
        BGPFilterMatchOperator::Unknown(_) => {
            let reason = ConversionReason::NoMatchOperator;
            return Err(ConversionError::new("matchOperator", &rule.match_operator, reason));
        }
    };
    let length = rule.prefix_length.as_ref().map(|length| {
        let first = length.min.and_then(|bits| u8::try_from(bits).ok()).unwrap_or(0);
        let last = length.max.and_then(|bits| u8::try_from(bits).ok()).unwrap_or(u8::MAX);
        (first.max(net.prefix_len()), last.min(net.max_prefix_len()))
    });
    Ok(Some(FilterPrefix { net, operator, length }))
}

fn convert_operation(operation: &BGPFilterOperation) -> Result<FilterOperation, ConversionError> {
    if let Some(add) = &operation.add_community {
        parse_known_community("addCommunity.value", &add.value).map(FilterOperation::AddCommunity)
    } else if let Some(prepend) = &operation.prepend_as_path {
        Ok(FilterOperation::PrependPath(prepend.prefix.iter().map(|number| number.0).collect()))
    } else if let Some(set) = &operation.set_priority {
        parse_priority("setPriority.value", set.value).map(FilterOperation::SetPriority)
    } else {
        Err(ConversionError::new("operations", "", ConversionReason::EmptyOperation))
    }
}
